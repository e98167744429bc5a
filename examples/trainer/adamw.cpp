#include "adamw.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace trainer {

adamw::adamw(adamw_settings const& settings, parameter_list const& trained) : settings_(settings) {
  constexpr std::int64_t longest = 1 << 14;
  for (parameter const& p : trained.all())
    for (std::int64_t begin = 0; begin < p.count; begin += longest)
      segments_.push_back({p.offset + begin, p.offset + std::min(begin + longest, p.count), p.is_matrix});
}

double adamw::update(workers const& on, std::int64_t t, double learning_rate, float* weights, float const* gradients,
                     float* m, float* v, double* squares) const {
  if (on.planning()) return 0;
  on.each(square_count(), [&](std::int64_t i) {
    segment const& s = segments_[std::size_t(i)];
    double sum[4] = {};
    for (std::int64_t j = s.begin; j < s.end; ++j) sum[j % 4] += double(gradients[j]) * double(gradients[j]);
    squares[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  });
  double sum = 0;
  for (std::int64_t i = 0; i < square_count(); ++i) sum += squares[i];
  double const norm = std::sqrt(sum);
  if (!std::isfinite(norm)) return norm;

  auto const clip = float(norm > settings_.clip ? settings_.clip / norm : 1);
  auto const b1 = float(settings_.beta1), b2 = float(settings_.beta2), epsilon = float(settings_.epsilon);
  auto const rate = float(learning_rate / (1 - std::pow(settings_.beta1, double(t))));
  auto const v_scale = float(1 / (1 - std::pow(settings_.beta2, double(t))));
  on.each(square_count(), [&](std::int64_t i) {
    segment const& s = segments_[std::size_t(i)];
    auto const keep = float(s.decays ? 1 - learning_rate * settings_.weight_decay : 1);
    for (std::int64_t j = s.begin; j < s.end; ++j) {
      float const g = gradients[j] * clip;
      m[j] = b1 * m[j] + (1 - b1) * g;
      v[j] = b2 * v[j] + (1 - b2) * g * g;
      weights[j] = keep * weights[j] - rate * m[j] / (std::sqrt(v[j] * v_scale) + epsilon);
    }
  });
  return norm;
}

double learning_rate_at(std::int64_t t, std::int64_t warmup, std::int64_t steps, double peak) {
  if (t <= warmup) return peak * double(t) / double(warmup);
  double const done = double(t - warmup) / double(std::max<std::int64_t>(1, steps - warmup));
  return peak * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * done)));
}

}  // namespace trainer
