// Attention with linear biases (Press, Smith, Lewis 2022): s' = s - slope[batch, head] |q + offset - k|.
#pragma once

#include <cstdint>

#include "alignment.hpp"
#include "parameter.hpp"

namespace lanewise {

/// Subtracts slope[batch, head] * |q + offset - k| from the score; keeps every pair. Under a causal mask of the same
/// alignment this is the paper's definition; without one it is symmetric. Slopes are positive in the paper.
struct alibi {
  parameter_view<float const> slope{};  ///< [B or 1, H or 1, 1, 1]
  parameter_view<float> d_slope{};      ///< gradient; left out: not wanted
  std::int32_t offset = 0;              ///< key position of query 0: 0 is top-left

  LANEWISE_HD constexpr float distance(position at) const {
    std::int32_t const d = at.q + offset - at.k;
    return float(d < 0 ? -d : d);
  }
  LANEWISE_HD constexpr float operator()(float s, position at) const {
    return s - slope.at(at.batch, at.head, 0, 0) * distance(at);
  }
  LANEWISE_HD constexpr float grad(float, position) const { return 1.f; }
  LANEWISE_HD constexpr parameter_view<float> parameter_gradient() const { return d_slope; }
  LANEWISE_HD constexpr float parameter_factor(float, position at) const { return -distance(at); }

  status validate(shape s) const {
    if (s.batch == 0 || s.heads == 0) return {};
    if (status const bad = detail::check_parameter("alibi: slope", slope, {s.batch, s.heads, 1, 1}); !bad) return bad;
    if (status const bad = detail::check_parameter_gradient("alibi: d_slope", d_slope, slope); !bad) return bad;
    return detail::check_offset("alibi", offset, s);
  }
};

/// alibi with offset = Sk - Sq: the last query stands at the last key.
struct alibi_bottom_right {
  parameter_view<float const> slope{};
  parameter_view<float> d_slope{};

  LANEWISE_HD constexpr alibi bind(shape s) const { return {slope, d_slope, bottom_right_offset(s)}; }
  LANEWISE_HD constexpr parameter_view<float> parameter_gradient() const { return d_slope; }
  status validate(shape s) const { return bind(s).validate(s); }
};

}  // namespace lanewise
