#include "run_loop.hpp"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "progress.hpp"

namespace trainer {
namespace {

bool terminal_is_plain() {
  for (char const* name : {"LC_ALL", "LC_CTYPE", "LANG"})
    if (char const* const value = std::getenv(name); value && *value) {
      std::string const text = value;
      return text.find("UTF-8") == std::string::npos && text.find("utf8") == std::string::npos;
    }
  return true;
}

}  // namespace

std::string number_of(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

run_loop::run_loop(run_settings const& settings, std::string const& options, std::uint64_t data, char const* data_is,
                   run_directory const& directory, trainee& run, std::optional<checkpoint_header> const& resumed)
    : settings_(settings), directory_(directory), run_(run) {
  char hexadecimal[20];
  std::snprintf(hexadecimal, sizeof hexadecimal, "%016llx", static_cast<unsigned long long>(data));
  header_ = {0, options, hexadecimal, {}};
  if (!resumed) return;
  if (resumed->data != header_.data)
    throw resume_mismatch(std::string(data_is) + " differs from that of the run to continue: digest " + header_.data +
                          ", then " + resumed->data);
  load_weights(directory.checkpoint_path(resumed->step), run);
  header_ = *resumed;
}

std::optional<run_times> run_loop::run() {
  directory_.write("log.jsonl", header_.log);
  log_.open(directory_.path() / "log.jsonl", std::ios::binary | std::ios::app);
  progress bar(settings_.steps, header_.step, run_.tokens_per_step(), settings_.log_every, isatty(STDOUT_FILENO) == 1);
  std::int64_t saved = -1;
  run_times times{.steps = settings_.steps - header_.step};
  std::clock_t const begin = std::clock();
  for (std::int64_t t = header_.step + 1; t <= settings_.steps; ++t) {
    if (int const signal = stop_.received()) {
      if (saved != header_.step) save();
      std::printf("\nstopped by %s after step %lld; %s is written, --resume continues\n",
                  signal == SIGINT ? "SIGINT" : "SIGTERM", static_cast<long long>(header_.step),
                  directory_.checkpoint_path(header_.step).filename().c_str());
      return std::nullopt;
    }
    step_result const r = run_.step(t);
    header_.step = t;
    log("{\"step\":" + std::to_string(t) + ",\"loss\":" + number_of(r.loss) + ",\"learning_rate\":" +
        number_of(r.learning_rate) + ",\"gradient_norm\":" + number_of(r.gradient_norm) + "}\n");
    bar.step(t, r.loss, r.learning_rate);
    bar.pause();
    if (t % settings_.validate_every == 0 && t < settings_.steps) {
      double const loss = run_.glance();
      log_validation(loss);
      char rounded[32];
      std::snprintf(rounded, sizeof rounded, "%.4f", loss);
      bar.note("step " + std::to_string(t) + ": validation loss " + rounded + " " + run_.glance_is());
    }
    if (t % settings_.checkpoint_every == 0 && t < settings_.steps) {
      save();
      saved = t;
    }
    bar.resume();
  }
  times.seconds = bar.seconds();
  times.processor_seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
  times.tokens_per_second = bar.tokens_per_second(settings_.steps);
  return times;
}

void run_loop::log(std::string const& line) {
  header_.log += line;
  log_ << line;
  if (!log_.flush()) throw write_failed("cannot write " + (directory_.path() / "log.jsonl").string());
}

void run_loop::log_validation(double loss) {
  if (!std::isfinite(loss))
    throw loss_not_finite("validation after step " + std::to_string(header_.step) + ": loss " + number_of(loss) +
                          "; a smaller --lr or --clip may help; the last checkpoint is untouched");
  log("{\"step\":" + std::to_string(header_.step) + ",\"validation_loss\":" + number_of(loss) + "}\n");
}

void run_loop::save() {
  save_checkpoint(directory_, header_, run_);
  directory_.keep_last(settings_.keep_last);
}

void run_loop::show_curve(double yardstick, curve_words const& words, std::string const& title) const {
  loss_curve const curve = loss_curve::from_log(header_.log, yardstick, words);
  directory_.write("loss.svg", curve.svg(title));
  std::printf("\n%s\n", curve.terminal(72, 16, terminal_is_plain()).c_str());
}

void run_loop::write_summary(nlohmann::ordered_json verdict, run_times const& times, std::string const& attention,
                             std::size_t plan_bytes) const {
  verdict.update(nlohmann::ordered_json{{"steps", settings_.steps},
                                        {"seconds", times.seconds},
                                        {"processor_seconds", times.processor_seconds},
                                        {"tokens_per_second", times.tokens_per_second},
                                        {"threads", settings_.threads},
                                        {"attention", attention},
                                        {"plan_bytes", plan_bytes}});
  directory_.write("summary.json", verdict.dump(2) + "\n");
  std::printf("trained %lld steps in %.1f s, %.0f tokens/s, %lld threads; files are in %s\n",
              static_cast<long long>(times.steps), times.seconds, times.tokens_per_second,
              static_cast<long long>(settings_.threads), directory_.path().c_str());
}

}  // namespace trainer
