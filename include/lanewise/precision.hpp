// Storage types and precisions.
//
// Storage is what lies in memory (f32, bf16, f16); precision is storage plus the arithmetic of the matrix products.
// Accumulation is f32 everywhere.
#pragma once

#include <cstdint>
#include <type_traits>

#include "host_device.hpp"

namespace lanewise {

/// std::bit_cast for host and device code, without <bit>.
template <class To, class From>
LANEWISE_HD constexpr To bit_cast(From x) {
  return __builtin_bit_cast(To, x);
}

/// bfloat16 by its bits. Layout-compatible with __nv_bfloat16 and ggml_bf16_t: reinterpret_cast a pointer to either.
struct bf16 {
  std::uint16_t bits = 0;
};

/// IEEE binary16 by its bits. Layout-compatible with __half and ggml_fp16_t.
struct f16 {
  std::uint16_t bits = 0;
};

LANEWISE_HD constexpr float to_float(float x) { return x; }
LANEWISE_HD constexpr float to_float(bf16 x) { return bit_cast<float>(std::uint32_t{x.bits} << 16); }

/// Exact: every f16 is a float.
LANEWISE_HD constexpr float to_float(f16 x) {
  std::uint32_t const sign = std::uint32_t(x.bits & 0x8000u) << 16;
  std::uint32_t const exponent = (x.bits >> 10) & 0x1fu, mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1f) return bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  float const magnitude = float(mantissa) * 0x1p-24f;  // zero and subnormals
  return sign ? -magnitude : magnitude;
}

/// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN. T is float, bf16 or f16.
template <class T>
LANEWISE_HD constexpr T from_float(float x) {
  std::uint32_t const u = bit_cast<std::uint32_t>(x);
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{std::uint16_t((u >> 16) | 0x40u)};
    return bf16{std::uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
  } else {
    static_assert(std::is_same_v<T, f16>, "from_float: the storage types are float, bf16 and f16");
    std::uint16_t const sign = std::uint16_t((u >> 16) & 0x8000u);
    std::uint32_t const magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return f16{std::uint16_t(sign | 0x7e00u)};
    if (magnitude >= 0x477ff000u) return f16{std::uint16_t(sign | 0x7c00u)};  // rounds to 65520 or more
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds to a multiple of 2^-24 in the low bits
      std::uint32_t const r = bit_cast<std::uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
      return f16{std::uint16_t(sign | r)};
    }
    std::uint32_t const r = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
    return f16{std::uint16_t(sign | (r >> 13))};
  }
}

/// What a config computes in. Error bounds: docs/precision.md.
enum class precision {
  f32,         ///< f32 storage, f32 products
  tf32,        ///< f32 storage, operands rounded to nearest tf32 (10-bit mantissa) on the GPU; f32 on the CPU
  f16,         ///< f16 storage, f16 products
  bf16,        ///< bf16 storage, bf16 products
  bf16_split,  ///< bf16 storage, P and dS carried in two bf16 limbs; f32 products on the CPU
  f32_split    ///< f32 storage, each operand as two scaled f16 limbs: f32-class; f32 products on the CPU
};

/// The type that q, k, v, o and d_o are stored in.
template <precision P>
using storage = std::conditional_t<P == precision::f16, f16,
                                   std::conditional_t<P == precision::bf16 || P == precision::bf16_split, bf16, float>>;

constexpr char const* name_of(precision p) {
  switch (p) {
    case precision::f32: return "f32";
    case precision::tf32: return "tf32";
    case precision::f16: return "f16";
    case precision::bf16: return "bf16";
    case precision::bf16_split: return "bf16_split";
    case precision::f32_split: return "f32_split";
  }
  return "unknown";
}

/// Unit roundoff doubled (the spacing of numbers just above 1).
template <class T>
inline constexpr double epsilon_of = std::is_same_v<T, float>  ? 0x1p-23
                                     : std::is_same_v<T, bf16> ? 0x1p-7
                                                               : 0x1p-10;

}  // namespace lanewise
