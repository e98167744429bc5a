// Muon (Jordan et al. 2024) for matrices whose shorter side is at least 16, AdamW for every other tensor. A matrix
// moves along its momentum with the singular values all brought close to 1, which five Newton-Schulz steps do by
// products alone:
//
//   g *= min(1, clip / |all gradients|),  m = 0.95 m + g,  X = (g + 0.95 m) / |g + 0.95 m|
//   five times  A = X X^T,  X = 3.4445 X + (-4.7750 A + 2.0315 A^2) X          A on the shorter side
//   w = (1 - lr decay) w - 20 lr sqrt(max(1, rows / columns)) X
//
// 20: so that one learning rate serves both kinds of tensor. The momentum lies where AdamW has its first moments.
#pragma once

#include <cstdint>
#include <vector>

#include "adamw.hpp"
#include "step_memory.hpp"

namespace trainer {

class muon {
 public:
  static constexpr std::int64_t shortest_side = 16;
  static constexpr int iterations = 5;
  static constexpr double momentum = 0.95, rate_scale = 20;

  static bool takes(parameter const& p);

  /// chosen: which tensors are moved so; AdamW moves the others.
  muon(adamw_settings const& settings, parameter_list const& trained, bool (*chosen)(parameter const&) = takes);

  /// As adamw's, with the gradient's norm before clipping as the result; the gradients are left spoiled. Waits for the
  /// norms, the gradient's and one of each matrix.
  double update(ops<float> const& op, step_memory& memory, std::int64_t t, double learning_rate, adamw_arrays const& on,
                float* gradients) const;
  /// AdamW's, whose segments the arrays hold.
  adamw const& rest() const { return rest_; }

 private:
  struct matrix {
    std::int64_t offset, rows, columns;
    std::int64_t first_segment, segments;
  };
  void step(ops<float> const& op, step_memory& memory, matrix const& m, double learning_rate, double clip,
            adamw_arrays const& on, float* gradients) const;

  adamw_settings settings_;
  adamw rest_;
  std::vector<matrix> matrices_;
};

}  // namespace trainer
