#include "flow.hpp"

#include <algorithm>
#include <cmath>

namespace trainer {

double draw_time(random_numbers& draw, flow_times const& times) {
  return std::clamp(1 / (1 + std::exp(-(times.mean + times.deviation * draw.normal()))), 1e-5, 1 - 1e-5);
}

void noise_data(std::int64_t count, double t, float const* data, float const* noise, float* noised, float* velocity) {
  auto const there = float(t), back = float(1 - t);
  for (std::int64_t i = 0; i < count; ++i) {
    noised[i] = there * noise[i] + back * data[i];
    velocity[i] = noise[i] - data[i];
  }
}

void fill_time_features(double t, float* features) {
  constexpr std::int64_t half = time_features / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    double const angle = 1000 * t * std::pow(10000.0, -double(i) / double(half));
    features[i] = float(std::cos(angle));
    features[half + i] = float(std::sin(angle));
  }
}

linear_predictor::linear_predictor(recordings const& data)
    : mean_(std::size_t(data.bands)), variance_(std::size_t(data.bands)) {
  auto const count = double(data.frames_of(data.train));
  auto const each = [&](auto const& f) {
    for (stretch const& s : data.train)
      for (std::int64_t i = 0; i < s.frames; ++i)
        for (std::size_t c = 0; c < mean_.size(); ++c) f(c, double(data.frame(s, i)[c]));
  };
  each([&](std::size_t c, double x) { mean_[c] += x / count; });
  each([&](std::size_t c, double x) { variance_[c] += (x - mean_[c]) * (x - mean_[c]) / count; });
}

double linear_predictor::slope(double t, std::int64_t channel) const {
  double const variance = variance_[std::size_t(channel)], back = 1 - t;
  return (t - back * variance) / (t * t + back * back * variance);
}

double linear_predictor::predict(double t, std::int64_t channel, double noised) const {
  double const mean = mean_[std::size_t(channel)];
  return slope(t, channel) * (noised - (1 - t) * mean) - mean;
}

double linear_predictor::squared_error(double t, std::int64_t frames, float const* noised,
                                       float const* velocity) const {
  double sum = 0;
  for (std::int64_t i = 0; i < frames * channels(); ++i) {
    double const error = predict(t, i % channels(), double(noised[i])) - double(velocity[i]);
    sum += error * error;
  }
  return sum;
}

}  // namespace trainer
