// Soft capping of scores: s' = cap tanh(s / cap), as in Gemma 2 (2024).
#pragma once

#include "../math.hpp"
#include "../status.hpp"
#include "../variant.hpp"

namespace lanewise {

/// Bends the score s = scale * q.k into (-cap, cap); keeps every pair.
struct softcap {
  float cap = 0.f;  ///< above 0

  LANEWISE_HD float operator()(float s, position) const { return cap * tanh_f32(s / cap); }
  LANEWISE_HD float grad(float s, position) const {
    float const t = tanh_f32(s / cap);
    return (1.f - t) * (1.f + t);
  }
  constexpr status validate(shape) const {
    if (cap > 0.f && cap < infinity) return {};
    return fail(status_code::bad_argument, "softcap: cap is ", cap, ", it must be a finite number above 0");
  }
};

}  // namespace lanewise
