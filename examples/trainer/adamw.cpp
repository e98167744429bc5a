#include "adamw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer {

adamw::adamw(adamw_settings const& settings, parameter_list const& trained)
    : adamw(settings, trained, [](parameter const&) { return false; }) {}

adamw::adamw(adamw_settings const& settings, parameter_list const& trained, bool (*elsewhere)(parameter const&))
    : settings_(settings) {
  constexpr std::int64_t longest = 1 << 14;
  auto const add = [&](bool those_elsewhere) {
    for (parameter const& p : trained.all())
      if (elsewhere(p) == those_elsewhere)
        for (std::int64_t begin = 0; begin < p.count; begin += longest)
          segments_.push_back({p.offset + begin, p.offset + std::min(begin + longest, p.count), p.is_matrix});
  };
  add(false);
  updated_ = segment_count();
  add(true);
}

void adamw::update(ops<float> const& op, std::int64_t t, double learning_rate, adamw_arrays const& on) const {
  op.norm(segment_count(), on.segments, on.gradients, on.squares, on.norm);
  adamw_rates const r{.clip = settings_.clip,
                      .beta1 = float(settings_.beta1),
                      .beta2 = float(settings_.beta2),
                      .epsilon = float(settings_.epsilon),
                      .rate = float(learning_rate / (1 - std::pow(settings_.beta1, double(t)))),
                      .v_scale = float(1 / (1 - std::pow(settings_.beta2, double(t)))),
                      .keep = float(1 - learning_rate * settings_.weight_decay)};
  op.adamw_update(updated_, on.segments, r, on.norm, on.gradients, on.weights, on.m, on.v);
}

double learning_rate_at(std::int64_t t, std::int64_t warmup, std::int64_t steps, double peak) {
  if (t <= warmup) return peak * double(t) / double(warmup);
  double const done = double(t - warmup) / double(std::max<std::int64_t>(1, steps - warmup));
  return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

}  // namespace trainer
