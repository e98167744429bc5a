// The directory that a run writes into. Every file but the log is written under a temporary name and renamed. Before a
// write the guard asks for the room it needs on top of what must stay free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "../common/safetensors.hpp"

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
  /// Deletes the files of a run.
  void clear() const;
  /// Deletes all checkpoints but the last `count`.
  void keep_last(std::int64_t count) const;

  /// Throws disk-low, with the numbers, unless `bytes` can be written.
  void require_room(std::uint64_t bytes) const;
  /// Writes `text` to a file here, by way of a temporary name.
  void write(std::string const& name, std::string const& text) const;
  void write(std::string const& name, safetensors::file const& tensors) const;

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

}  // namespace trainer
