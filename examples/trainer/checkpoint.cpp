#include "checkpoint.hpp"

#include <charconv>
#include <cstring>

#include "error.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::string format_of(std::string const& command) { return "lanewise-train " + command + " 1"; }

safetensors::file read_file(fs::path const& path) {
  try {
    return safetensors::read(path);
  } catch (std::runtime_error const& e) {
    throw bad_checkpoint(std::string(e.what()) + "; delete it to continue from the one before");
  }
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

safetensors::file weights_of(trainee const& run) {
  safetensors::file f;
  std::vector<float> const weights = run.get(state_array::weights);
  for (parameter const& p : run.state().trained().all())
    f.tensors[p.name] =
        safetensors::make<float>(p.shape, std::span(weights).subspan(std::size_t(p.offset), std::size_t(p.count)));
  for (auto const& [name, values] : run.constants())
    f.tensors[name] = safetensors::make<float>({std::int64_t(values.size())}, values);
  return f;
}

void save_checkpoint(run_directory const& directory, checkpoint_header const& header, trainee const& run) {
  safetensors::file f = weights_of(run);
  std::vector<std::int64_t> const flat{run.state().trained().count()};
  f.tensors["adamw.m"] = safetensors::make<float>(flat, run.get(state_array::first_moments));
  f.tensors["adamw.v"] = safetensors::make<float>(flat, run.get(state_array::second_moments));
  f.tensors["log"] = safetensors::make<std::uint8_t>({std::int64_t(header.log.size())},
                                                     std::vector<std::uint8_t>(header.log.begin(), header.log.end()));
  f.metadata = {{"format", format_of(run.command())},
                {"step", std::to_string(header.step)},
                {"position", std::to_string(run.position_after(header.step))},
                {"options", header.options},
                {"data", header.data}};
  directory.write(directory.checkpoint_path(header.step).filename(), f);
}

checkpoint_header read_header(fs::path const& path, std::string const& command) {
  safetensors::file const f = read_file(path);
  if (std::string const format = metadata(path, f, "format"); format != format_of(command))
    throw bad_checkpoint(path.string() + ": format '" + format + "', of this command it is '" + format_of(command) +
                         "'");
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

void load_weights(fs::path const& path, trainee& run) {
  safetensors::file const f = read_file(path);
  std::vector<std::int64_t> const flat{run.state().trained().count()};
  std::vector<float> values(std::size_t(run.state().trained().count()));
  for (parameter const& p : run.state().trained().all())
    copy_into(path, f, p.name, p.shape, std::span(values).subspan(std::size_t(p.offset), std::size_t(p.count)));
  run.set(state_array::weights, values);
  copy_into(path, f, "adamw.m", flat, values);
  run.set(state_array::first_moments, values);
  copy_into(path, f, "adamw.v", flat, values);
  run.set(state_array::second_moments, values);
}

}  // namespace trainer
