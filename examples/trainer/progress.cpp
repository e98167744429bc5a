#include "progress.hpp"

#include <cstdio>

namespace trainer {
namespace {

/// "1m05s", "42s".
std::string duration(double seconds) {
  auto const whole = static_cast<long long>(seconds + 0.5);
  char text[48];
  if (whole >= 3600) std::snprintf(text, sizeof text, "%lldh%02lldm", whole / 3600, whole / 60 % 60);
  else if (whole >= 60) std::snprintf(text, sizeof text, "%lldm%02llds", whole / 60, whole % 60);
  else std::snprintf(text, sizeof text, "%llds", whole);
  return text;
}

}  // namespace

progress::progress(std::int64_t steps, std::int64_t done, std::int64_t tokens, std::int64_t every, bool terminal)
    : steps_(steps), done_(done), tokens_(tokens), every_(every), terminal_(terminal), begin_(clock::now()),
      last_line_(begin_) {}

double progress::seconds() const { return std::chrono::duration<double>(clock::now() - begin_ - paused_).count(); }

double progress::tokens_per_second(std::int64_t t) const {
  double const s = seconds();
  return s > 0 ? double((t - done_) * tokens_) / s : 0;
}

void progress::pause() { paused_at_ = clock::now(); }
void progress::resume() { paused_ += clock::now() - paused_at_; }

void progress::step(std::int64_t t, double loss, double learning_rate) {
  constexpr double memory = 0.95;  // the loss shown is a mean over some twenty steps
  smooth_loss_ = memory * smooth_loss_ + (1 - memory) * loss;
  weight_ = memory * weight_ + (1 - memory);
  auto const now = clock::now();
  double const since = std::chrono::duration<double>(now - last_line_).count();
  bool const last = t == steps_;
  if (terminal_ ? since < 0.1 && !last : t % every_ != 0 && since < 10 && !last) return;
  last_line_ = now;
  double const speed = tokens_per_second(t);
  std::printf("%sstep %lld/%lld  loss %.4f  lr %.2e  %.0f tokens/s  left %s%s", terminal_ ? "\r\033[K" : "",
              static_cast<long long>(t), static_cast<long long>(steps_), smooth_loss_ / weight_, learning_rate, speed,
              duration(double((steps_ - t) * tokens_) / speed).c_str(), terminal_ ? "" : "\n");
  line_open_ = terminal_;
  std::fflush(stdout);
}

void progress::note(std::string const& text) {
  std::printf("%s%s\n", line_open_ ? "\n" : "", text.c_str());
  line_open_ = false;
  std::fflush(stdout);
}

}  // namespace trainer
