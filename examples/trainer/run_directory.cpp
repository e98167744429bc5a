#include "run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>

#include "error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

/// What a run leaves beside its checkpoints, whatever its command.
constexpr char const* others[] = {"log.jsonl",           "model.safetensors",
                                  "config.json",         "tokenizer.json",
                                  "adapter_config.json", "adapter_model.safetensors",
                                  "lycoris.safetensors", "loss.svg",
                                  "summary.json",        "sample.wav"};

std::uint64_t bytes_of(safetensors::file const& f) {
  std::uint64_t bytes = 1 << 16;  // the header
  for (auto const& [name, t] : f.tensors) bytes += t.data.size();
  return bytes;
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

void run_directory::write(std::string const& name, safetensors::file const& tensors) const {
  require_room(bytes_of(tensors));
  try {
    safetensors::write(path_ / name, tensors);
  } catch (std::runtime_error const& e) {
    throw write_failed(e.what());
  }
}

void write_report(fs::path const& file, double min_free_gb, std::string const& text) {
  fs::path const whole = fs::absolute(file);
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

}  // namespace trainer
