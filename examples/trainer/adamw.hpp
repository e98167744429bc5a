// AdamW (Loshchilov and Hutter 2019) on a flat array of weights, with the gradient clipped by its global norm.
//
//   g *= min(1, clip / |g|),  m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2
//   w -= lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + lr decay w        decay on matrices alone
#pragma once

#include <cstdint>
#include <vector>

#include "ops.hpp"
#include "parameters.hpp"

namespace trainer {

struct adamw_settings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.1, clip = 1.0;
  bool operator==(adamw_settings const&) const = default;
};

/// What an update reads and writes, on the device of the ops that do it.
struct adamw_arrays {
  segment const* segments;  ///< adamw::segments()
  float const* gradients;
  float *weights, *m, *v;
  double *squares, *norm;  ///< one a segment; one, the gradient's norm before clipping
};

class adamw {
 public:
  adamw(adamw_settings const& settings, parameter_list const& trained);
  /// Tensors that are updated elsewhere come last in segments() and count for the norm alone.
  adamw(adamw_settings const& settings, parameter_list const& trained, bool (*elsewhere)(parameter const&));

  /// One update; t counts from 1. Where the norm is not finite only the norm is written.
  void update(ops<float> const& op, std::int64_t t, double learning_rate, adamw_arrays const& on) const;
  /// The tensors in pieces of bounded size.
  std::vector<segment> const& segments() const { return segments_; }
  std::int64_t segment_count() const { return std::int64_t(segments_.size()); }

 private:
  adamw_settings settings_;
  std::vector<segment> segments_;
  std::int64_t updated_;  ///< segments of its own
};

/// Linear from 0 over `warmup` steps, then a cosine from `peak` to a tenth of it at `steps`; t counts from 1.
double learning_rate_at(std::int64_t t, std::int64_t warmup, std::int64_t steps, double peak);

}  // namespace trainer
