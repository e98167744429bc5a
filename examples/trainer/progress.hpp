// What a run shows while it lasts: one line with step, loss, learning rate, speed and time left. A terminal sees it
// renewed in place; elsewhere a line is written every `every` steps, and at least every ten seconds as a sign of life.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace trainer {

class progress {
 public:
  using clock = std::chrono::steady_clock;

  /// steps: of the whole run; done: taken before this process began; tokens: of one step.
  progress(std::int64_t steps, std::int64_t done, std::int64_t tokens, std::int64_t every, bool terminal);

  /// After step t.
  void step(std::int64_t t, double loss, double learning_rate);
  /// A line of its own, such as a validation result.
  void note(std::string const& text);

  /// Seconds between begin_training and now, and tokens per second, without what pause covers.
  double seconds() const;
  double tokens_per_second(std::int64_t t) const;

  /// Time spent between the two is validation or writing, not training.
  void pause();
  void resume();

 private:
  std::int64_t steps_, done_, tokens_, every_;
  bool terminal_, line_open_ = false;
  double smooth_loss_ = 0, weight_ = 0;
  clock::time_point begin_, last_line_, paused_at_;
  clock::duration paused_{};
};

}  // namespace trainer
