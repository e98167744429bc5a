// Rectified flow (Liu, Gong, Liu 2023; Lipman et al. 2023): a straight line from data x0 to noise x1, and a model that
// predicts the velocity along it.
//
//   x_t = t x1 + (1 - t) x0,   velocity = x1 - x0,   x1 ~ N(0, 1),   loss = mean((prediction - velocity)^2)
//   t = sigmoid(mean + deviation z), z ~ N(0, 1), so that the middle of the way is seen most (Esser et al. 2024)
//
// and its yardstick, the best predictor of a channel's velocity that is linear in the same channel's x_t, with
// coefficients that may depend on t in any way. With m and s^2 the mean and variance of the channel's x0,
//
//   a(t) = cov(velocity, x_t) / var(x_t) = (t - (1 - t) s^2) / (t^2 + (1 - t)^2 s^2)
//   prediction = a(t) (x_t - (1 - t) m) - m
#pragma once

#include <cstdint>
#include <vector>

#include "audio/recordings.hpp"
#include "dit_model.hpp"
#include "random.hpp"

namespace trainer {

struct flow_times {
  double mean = -0.4, deviation = 1;
};

/// A time in [1e-5, 1 - 1e-5].
double draw_time(random_numbers& draw, flow_times const& times);

/// noised[count] and velocity[count] of data[count] and noise[count].
void noise_data(std::int64_t count, double t, float const* data, float const* noise, float* noised, float* velocity);

/// features[time_features]: cosines, then sines, of 1000 t at frequencies from 1 down to 1/10000.
void fill_time_features(double t, float* features);

class linear_predictor {
 public:
  /// mean[channels], variance[channels] of the data.
  linear_predictor(std::vector<double> mean, std::vector<double> variance)
      : mean_(std::move(mean)), variance_(std::move(variance)) {}
  /// Of the frames to train on.
  explicit linear_predictor(recordings const& data);

  std::int64_t channels() const { return std::int64_t(mean_.size()); }
  double slope(double t, std::int64_t channel) const;
  double predict(double t, std::int64_t channel, double noised) const;
  /// Sum of squared errors over [frames, channels].
  double squared_error(double t, std::int64_t frames, float const* noised, float const* velocity) const;

 private:
  std::vector<double> mean_, variance_;
};

}  // namespace trainer
