#include "checkpoint.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../common/safetensors.hpp"
#include "adapter_files.hpp"
#include "error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr char const* format_name = "lanewise-train lm 1";
constexpr char const* others[] = {
    "log.jsonl",           "model.safetensors",         "config.json",         "tokenizer.json",
    "adapter_config.json", "adapter_model.safetensors", "lycoris.safetensors", "loss.svg",
    "summary.json"};

std::uint64_t bytes_of(safetensors::file const& f) {
  std::uint64_t bytes = 1 << 16;  // the header
  for (auto const& [name, t] : f.tensors) bytes += t.data.size();
  return bytes;
}

void write_file(run_directory const& directory, fs::path const& path, safetensors::file const& f) {
  directory.require_room(bytes_of(f));
  try {
    safetensors::write(path, f);
  } catch (std::runtime_error const& e) {
    throw write_failed(e.what());
  }
}

safetensors::file read_file(fs::path const& path) {
  try {
    return safetensors::read(path);
  } catch (std::runtime_error const& e) {
    throw bad_checkpoint(std::string(e.what()) + "; delete it to continue from the one before");
  }
}

void add_weights(safetensors::file& f, lm_trainer const& run) {
  std::vector<float> const weights = run.get(state_array::weights);
  for (parameter const& p : run.layout().trained().all())
    f.tensors[p.name] =
        safetensors::make<float>(p.shape, std::span(weights).subspan(std::size_t(p.offset), std::size_t(p.count)));
}

void copy_into(fs::path const& path, safetensors::file const& f, std::string const& name,
               std::vector<std::int64_t> const& shape, std::span<float> to) {
  auto const found = f.tensors.find(name);
  if (found == f.tensors.end()) throw bad_checkpoint(path.string() + ": no tensor " + name);
  safetensors::tensor const& t = found->second;
  if (t.dtype != "F32" || t.shape != shape || t.data.size() != to.size_bytes())
    throw bad_checkpoint(path.string() + ": tensor " + name + " is " + t.dtype + " of " +
                         std::to_string(t.data.size()) + " bytes, F32 of " + std::to_string(to.size_bytes()) +
                         " is needed");
  std::memcpy(to.data(), t.data.data(), to.size_bytes());
}

std::string metadata(fs::path const& path, safetensors::file const& f, char const* key) {
  auto const found = f.metadata.find(key);
  if (found == f.metadata.end()) throw bad_checkpoint(path.string() + ": no metadata " + key);
  return found->second;
}

}  // namespace

run_directory::run_directory(fs::path path, double min_free_gb) : path_(std::move(path)), min_free_gb_(min_free_gb) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (!fs::is_directory(path_)) throw write_failed("--out: cannot create " + path_.string() + ": " + error.message());
}

fs::path run_directory::checkpoint_path(std::int64_t step) const {
  char name[64];
  std::snprintf(name, sizeof name, "checkpoint-%06lld.safetensors", static_cast<long long>(step));
  return path_ / name;
}

std::vector<fs::path> run_directory::checkpoints() const {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  for (auto const& entry : fs::directory_iterator(path_)) {
    std::string const name = entry.path().filename();
    constexpr std::string_view prefix = "checkpoint-", suffix = ".safetensors";
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
    std::int64_t step = 0;
    char const *const begin = name.data() + prefix.size(), *const end = name.data() + name.size() - suffix.size();
    if (auto const r = std::from_chars(begin, end, step); r.ec == std::errc() && r.ptr == end)
      found.emplace_back(step, entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

std::optional<fs::path> run_directory::newest_checkpoint() const {
  std::vector<fs::path> const all = checkpoints();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

bool run_directory::holds_a_run() const { return !checkpoints().empty() || fs::exists(path_ / "log.jsonl"); }

void run_directory::clear() const {
  for (fs::path const& p : checkpoints()) fs::remove(p);
  for (char const* name : others) fs::remove(path_ / name);
}

void run_directory::keep_last(std::int64_t count) const {
  std::vector<fs::path> const all = checkpoints();
  for (std::size_t i = 0; i + std::size_t(count) < all.size(); ++i) fs::remove(all[i]);
}

void run_directory::require_room(std::uint64_t bytes) const {
  std::error_code error;
  fs::space_info const space = fs::space(path_, error);
  if (error) throw disk_low("cannot tell the free space at " + path_.string() + ": " + error.message());
  if (double(space.available) - double(bytes) >= min_free_gb_ * 1e9) return;
  char numbers[192];
  std::snprintf(
      numbers, sizeof numbers,
      ": %.1f MB free, %.1f MB to write, %.1f MB to stay free (--min-free-gb %g); earlier checkpoints are whole",
      double(space.available) / 1e6, double(bytes) / 1e6, min_free_gb_ * 1e3, min_free_gb_);
  throw disk_low(path_.string() + numbers);
}

void run_directory::write(std::string const& name, std::string const& text) const {
  require_room(text.size());
  fs::path const part = path_ / (name + ".part");
  {
    std::ofstream out(part, std::ios::binary | std::ios::trunc);
    out << text;
    if (!out.flush()) throw write_failed("cannot write " + part.string());
  }
  fs::rename(part, path_ / name);
}

void write_report(std::filesystem::path const& file, double min_free_gb, std::string const& text) {
  std::filesystem::path const whole = std::filesystem::absolute(file);
  run_directory(whole.parent_path(), min_free_gb).write(whole.filename(), text);
}

run_lock::run_lock(fs::path const& directory) : fd_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0 || ::flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(fd_);
  throw output_exists(directory.string() + ": another lanewise-train is running there");
}

run_lock::~run_lock() {
  if (fd_ >= 0) ::close(fd_);
}

void save_checkpoint(run_directory const& directory, checkpoint_header const& header, lm_trainer& run) {
  safetensors::file f;
  add_weights(f, run);
  std::vector<std::int64_t> const flat{run.layout().trained().count()};
  f.tensors["adamw.m"] = safetensors::make<float>(flat, run.get(state_array::first_moments));
  f.tensors["adamw.v"] = safetensors::make<float>(flat, run.get(state_array::second_moments));
  f.tensors["log"] = safetensors::make<std::uint8_t>({std::int64_t(header.log.size())},
                                                     std::vector<std::uint8_t>(header.log.begin(), header.log.end()));
  f.metadata = {{"format", format_name},
                {"step", std::to_string(header.step)},
                {"position", std::to_string(run.position_after(header.step))},
                {"options", header.options},
                {"data", header.data}};
  write_file(directory, directory.checkpoint_path(header.step), f);
}

checkpoint_header read_header(fs::path const& path) {
  safetensors::file const f = read_file(path);
  if (std::string const format = metadata(path, f, "format"); format != format_name)
    throw bad_checkpoint(path.string() + ": format '" + format + "', this program reads '" + format_name + "'");
  checkpoint_header h;
  std::string const step = metadata(path, f, "step");
  if (std::from_chars(step.data(), step.data() + step.size(), h.step).ec != std::errc())
    throw bad_checkpoint(path.string() + ": step '" + step + "' is no number");
  h.options = metadata(path, f, "options");
  h.data = metadata(path, f, "data");
  auto const log = f.tensors.find("log");
  if (log == f.tensors.end() || log->second.dtype != "U8") throw bad_checkpoint(path.string() + ": no log");
  h.log.assign(reinterpret_cast<char const*>(log->second.data.data()), log->second.data.size());
  return h;
}

void load_weights(fs::path const& path, lm_trainer& run) {
  safetensors::file const f = read_file(path);
  std::vector<std::int64_t> const flat{run.layout().trained().count()};
  std::vector<float> values(std::size_t(run.layout().trained().count()));
  for (parameter const& p : run.layout().trained().all())
    copy_into(path, f, p.name, p.shape, std::span(values).subspan(std::size_t(p.offset), std::size_t(p.count)));
  run.set(state_array::weights, values);
  copy_into(path, f, "adamw.m", flat, values);
  run.set(state_array::first_moments, values);
  copy_into(path, f, "adamw.v", flat, values);
  run.set(state_array::second_moments, values);
}

void save_model(run_directory const& directory, lm_settings const& settings, lm_trainer& run) {
  model_shape const s = settings.model();
  safetensors::file f;
  add_weights(f, run);
  f.metadata["format"] = "pt";  // what transformers expects of a safetensors file
  write_file(directory, directory.path() / "model.safetensors", f);
  nlohmann::ordered_json const config{{"architectures", {"Qwen3ForCausalLM"}},
                                      {"model_type", "qwen3"},
                                      {"vocab_size", s.vocabulary},
                                      {"hidden_size", s.hidden},
                                      {"intermediate_size", s.ffn},
                                      {"num_hidden_layers", s.layers},
                                      {"num_attention_heads", s.q_heads},
                                      {"num_key_value_heads", s.kv_heads},
                                      {"head_dim", s.head_dim},
                                      {"max_position_embeddings", run.positions()},
                                      {"eos_token_id", run.words().separator()},
                                      {"rms_norm_eps", s.epsilon},
                                      {"rope_theta", s.rope_theta},
                                      {"hidden_act", "silu"},
                                      {"attention_bias", false},
                                      {"tie_word_embeddings", s.tied},
                                      {"torch_dtype", "float32"}};
  directory.write("config.json", config.dump(2) + "\n");
  if (run.words().is_bytes()) return;
  std::ifstream in(fs::path(settings.base) / "tokenizer.json", std::ios::binary);
  directory.write("tokenizer.json", {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()});
}

void save_adapter(run_directory const& directory, lm_settings const& settings, lm_trainer& run) {
  std::vector<float> const trained = run.get(state_array::weights);
  write_file(directory, directory.path() / "adapter_model.safetensors", peft_tensors(run.layout(), trained));
  directory.write("adapter_config.json", peft_config(run.layout(), settings.base));
  if (run.layout().how().adapter.kind == adapter_kind::lokr)
    write_file(directory, directory.path() / "lycoris.safetensors", lycoris_tensors(run.layout(), trained));
}

}  // namespace trainer
