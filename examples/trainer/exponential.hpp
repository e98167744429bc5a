// exp of a row. libm's expf is a call an element; here the compiler can use vectors. Arguments are reduced to
// |r| <= ln 2 / 2 and the rest is a polynomial (Cephes' expf). Relative error below 8.3e-8, measured over every seventh
// float in [-87, 88]; below -87.3 the result stays at 1.2e-38, above 88.3 at 2.4e38; NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace trainer {

/// y[i] = exp(x[i]); y may be x.
inline void exponentials(std::int64_t n, float const* x, float* y) {
  // A loop of its own: joined with the next, GCC folds the polynomial of the two constants and branches around it.
  for (std::int64_t i = 0; i < n; ++i) {
    float const capped = x[i] > 88.37626f ? 88.37626f : x[i];
    y[i] = capped < -87.33654f ? -87.33654f : capped;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    constexpr float round_to_whole = 12582912.f;  // 1.5 * 2^23: adding it leaves the rounded number in the low bits
    float const shifted = y[i] * 1.44269504088896341f + round_to_whole;
    float const whole = shifted - round_to_whole;
    float const r = (y[i] - whole * 0.693359375f) - whole * -2.12194440e-4f;  // ln 2 in two parts
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    y[i] = p * std::bit_cast<float>((std::bit_cast<std::uint32_t>(shifted) + 127u) << 23);
  }
}
inline void exponentials(std::int64_t n, double const* x, double* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = std::exp(x[i]);
}

}  // namespace trainer
