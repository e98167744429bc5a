// An additive bias with its gradient: s' = s + b[batch, head, q, k].
#pragma once

#include "../precision.hpp"
#include "parameter.hpp"

namespace lanewise {

/// Adds b[batch, head, q, k] to the score; keeps every pair. T is float, bf16 or f16. Each extent of b is 1 (shared)
/// or the call's; strides are free, 0 and negative included. An element of -infinity takes its pair's weight to 0 but
/// is no mask: the pair still counts as visible. Where a pair is meant to be hidden, use a mask.
template <class T>
struct basic_bias {
  parameter_view<T const> b{};
  parameter_view<float> d_b{};  ///< gradient, summed over what b shares; left out: not wanted

  LANEWISE_HD constexpr float operator()(float s, position at) const {
    return s + to_float(b.at(at.batch, at.head, at.q, at.k));
  }
  LANEWISE_HD constexpr float grad(float, position) const { return 1.f; }
  LANEWISE_HD constexpr parameter_view<float> parameter_gradient() const { return d_b; }
  LANEWISE_HD constexpr float parameter_factor(float, position) const { return 1.f; }

  status validate(shape s) const {
    if (s.batch == 0 || s.heads == 0 || s.q == 0 || s.k == 0) return {};
    if (status const bad = detail::check_parameter("bias: b", b, s); !bad) return bad;
    return detail::check_parameter_gradient("bias: d_b", d_b, b);
  }
};
using bias = basic_bias<float>;
using bias_bf16 = basic_bias<bf16>;
using bias_f16 = basic_bias<f16>;

}  // namespace lanewise
