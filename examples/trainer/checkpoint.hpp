// What a run leaves in its directory:
//
//   checkpoint-000360.safetensors   after step 360: weights under their Hugging Face names, the optimiser's averages,
//                                   the log so far; metadata: format, step, position, options, data
//   log.jsonl                       a line a step, and a line a validation
//   model.safetensors, config.json  the final weights, as Hugging Face's Qwen3 has them, and its tokenizer.json if the
//   base
//                                   has one; or, where the base was frozen, the adapter alone:
//   adapter_model.safetensors, adapter_config.json, lycoris.safetensors     as PEFT and LyCORIS read them
//   loss.svg, summary.json          the curve and the final figures
//
// Every file but the log is written under a temporary name and renamed. Before a write the guard asks for the room it
// needs on top of what must stay free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "lm_trainer.hpp"

namespace trainer {

class run_directory {
 public:
  /// Creates the directory. min_free_gb: 10^9 bytes that every write must leave free.
  run_directory(std::filesystem::path path, double min_free_gb);

  std::filesystem::path const& path() const { return path_; }
  std::filesystem::path checkpoint_path(std::int64_t step) const;
  std::optional<std::filesystem::path> newest_checkpoint() const;

  /// Something of an earlier run lies here.
  bool holds_a_run() const;
  /// Deletes the files named above.
  void clear() const;
  /// Deletes all checkpoints but the last `count`.
  void keep_last(std::int64_t count) const;

  /// Throws disk-low, with the numbers, unless `bytes` can be written.
  void require_room(std::uint64_t bytes) const;
  /// Writes `text` to a file here, by way of a temporary name.
  void write(std::string const& name, std::string const& text) const;

 private:
  std::vector<std::filesystem::path> checkpoints() const;  ///< oldest first
  std::filesystem::path path_;
  double min_free_gb_;
};

/// Writes a file that lies anywhere as run_directory::write does.
void write_report(std::filesystem::path const& file, double min_free_gb, std::string const& text);

/// Keeps a second run out of a directory until it is destroyed or its process has ended, however it ends.
class run_lock {
 public:
  /// Throws out-exists where another process holds the lock. A file system without locks gives none.
  explicit run_lock(std::filesystem::path const& directory);
  ~run_lock();
  run_lock(run_lock const&) = delete;
  run_lock& operator=(run_lock const&) = delete;

 private:
  int fd_;
};

/// What a checkpoint says besides the weights.
struct checkpoint_header {
  std::int64_t step = 0;
  std::string options;  ///< to_json of the settings
  std::string data;     ///< digest of the text, hexadecimal
  std::string log;      ///< log.jsonl up to this step
};

void save_checkpoint(run_directory const& directory, checkpoint_header const& header, lm_trainer& run);

/// The header alone, before there is a trainer to load into. Throws bad-checkpoint, naming the file.
checkpoint_header read_header(std::filesystem::path const& path);
/// Weights and averages. Throws bad-checkpoint, naming the file and the tensor that does not fit.
void load_weights(std::filesystem::path const& path, lm_trainer& run);

/// The files of the final model, or of its adapter.
void save_model(run_directory const& directory, lm_settings const& settings, lm_trainer& run);
void save_adapter(run_directory const& directory, lm_settings const& settings, lm_trainer& run);

}  // namespace trainer
