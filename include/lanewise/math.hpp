// The few transcendental functions that host-device code needs, without <cmath> (24,000 preprocessed lines).
#pragma once

#include "host_device.hpp"

#if !defined(__CUDACC__) && !defined(__GNUC__)
  #include <cmath>
#endif

namespace lanewise {

#if defined(__CUDACC__)
LANEWISE_HD inline float tanh_f32(float x) { return ::tanhf(x); }
LANEWISE_HD inline float exp_f32(float x) { return ::expf(x); }
LANEWISE_HD inline float log_f32(float x) { return ::logf(x); }
#elif defined(__GNUC__)
inline float tanh_f32(float x) { return __builtin_tanhf(x); }
inline float exp_f32(float x) { return __builtin_expf(x); }
inline float log_f32(float x) { return __builtin_logf(x); }
#else
inline float tanh_f32(float x) { return std::tanh(x); }
inline float exp_f32(float x) { return std::exp(x); }
inline float log_f32(float x) { return std::log(x); }
#endif

inline constexpr float infinity = __builtin_huge_valf();
inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

}  // namespace lanewise
