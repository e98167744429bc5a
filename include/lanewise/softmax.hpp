// The rules of the running softmax, scalar and shared by every backend.
//
// A row keeps m, the largest score so far in log2 units, and l = sum 2^(s - m) over the keys seen (Milakov and
// Gimelshein 2018; Dao et al. 2022, algorithm 1). A row that has seen no key has m = -infinity and l = 0; minus
// infinity is never subtracted from minus infinity.
#pragma once

#include "config.hpp"
#include "host_device.hpp"
#include "math.hpp"

namespace lanewise::softmax {

/// What is subtracted in the exponent: m, or 0 while the row has seen no key.
LANEWISE_HD constexpr float base_of(float m) { return m == -infinity ? 0.f : m; }

/// 1/l, or 0 for a row without keys, whose output is 0.
LANEWISE_HD constexpr float inverse_of(float l) { return l == 0.f ? 0.f : 1.f / l; }

/// Natural-log LSE of a finished row.
LANEWISE_HD inline float lse_of(float m, float l, empty_lse rule) {
  if (l == 0.f) return rule == empty_lse::zero ? 0.f : -infinity;
  return m * ln_2 + log_f32(l);
}

/// The forward's LSE in log2 units as the backward uses it; the LSE of an empty row becomes 0 under either rule.
LANEWISE_HD constexpr float backward_base_of(float lse) { return lse == -infinity ? 0.f : lse * log2_e; }

/// Takes one more key with logit z (natural log) and value zero into a finished row: a sink. Returns the factor that
/// the row's unnormalised output is to be multiplied by.
LANEWISE_HD inline float add_sink(float z, float& m, float& l) {
  float const z2 = z * log2_e, raised = z2 > m ? z2 : m, base = base_of(raised);
  float const factor = m == -infinity ? 0.f : exp_f32((m - base) * ln_2);
  l = l * factor + (z == -infinity ? 0.f : exp_f32((z2 - base) * ln_2));
  m = raised;
  return factor;
}

/// Probability that the backward gives to a sink of logit z in a row with this LSE.
LANEWISE_HD inline float sink_probability(float z, float lse) { return z == -infinity ? 0.f : exp_f32(z - lse); }

}  // namespace lanewise::softmax
