// What every training command does around its steps: continues or begins in its directory, takes steps with progress,
// log, validation and checkpoints, and stops at a signal.
#pragma once

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint.hpp"
#include "error.hpp"
#include "loss_curve.hpp"
#include "signals.hpp"

namespace trainer {

/// What the steps of this process took; fewer than --steps after --resume.
struct run_times {
  std::int64_t steps = 0;
  double seconds = 0, processor_seconds = 0, tokens_per_second = 0;
};

class run_loop {
 public:
  /// data: digest of the data. Where there is a checkpoint to continue, its weights are loaded; else `trainee` is
  /// started already. Throws resume-mismatch where the data differs: `data_is` says what it is.
  run_loop(run_settings const& settings, std::string const& options, std::uint64_t data, char const* data_is,
           run_directory const& directory, trainee& run, std::optional<checkpoint_header> const& resumed);

  /// Steps taken before this process.
  std::int64_t done() const { return header_.step; }
  /// Takes the steps. Nothing: stopped by a signal, with all saved and said.
  std::optional<run_times> run();
  /// The validation loss after the last step. Throws loss-not-finite.
  void log_validation(double loss);
  void save();
  /// Writes loss.svg and prints the curve.
  void show_curve(double yardstick, curve_words const& words, std::string const& title) const;
  /// Writes summary.json, the verdict first and then what every run ends with, and prints what the steps took.
  void write_summary(nlohmann::ordered_json verdict, run_times const& times, std::string const& attention,
                     std::size_t plan_bytes) const;

 private:
  void log(std::string const& line);

  run_settings const& settings_;
  run_directory const& directory_;
  trainee& run_;
  stop_requests stop_;
  checkpoint_header header_;
  std::ofstream log_;
};

std::string number_of(double value);

/// Runs a command in the directory that its options name: R(settings, checkpoint header to continue from, directory)
/// .run(), under the directory's lock. Throws bad-checkpoint, out-exists.
template <class R, class Options>
int run_in_directory(Options options, char const* command) {
  // What is to be continued is unknown yet, so its options cannot be held against one another.
  Options defaults;
  set_defaults(defaults);
  run_directory const directory(
      options.out, options.resume ? options.min_free_gb.value_or(*defaults.min_free_gb) : resolve(options).min_free_gb);
  run_lock const alone(directory.path());
  std::optional<checkpoint_header> resumed;
  if (options.resume) {
    auto const newest = directory.newest_checkpoint();
    if (!newest) throw bad_checkpoint("--resume: there is no checkpoint in " + directory.path().string());
    resumed = read_header(*newest, command);
    try {
      options = continue_from(options, resumed->options);
      static_cast<void>(loss_curve::from_log(resumed->log));
    } catch (nlohmann::json::exception const& e) {
      throw bad_checkpoint(newest->string() + ": its options or its log cannot be read: " + e.what() +
                           "; delete it to continue from the one before");
    }
  } else if (directory.holds_a_run()) {
    if (!options.overwrite)
      throw output_exists(
          directory.path().string() +
          " holds a run: continue it with --resume, delete it with --overwrite, or choose another --out");
    directory.clear();
  }
  auto const settings = resolve(options);
  directory.require_room(0);
  return R(settings, resumed, directory).run();
}

}  // namespace trainer
