// The running softmax on accumulators, one warp's rows: the rules of softmax.hpp with row reductions over the four
// lanes that share a row.
#pragma once

#include "../../softmax.hpp"
#include "gemm.cuh"

namespace lanewise::gpu {

/// Over the four lanes that share a row, on the C map.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/// m (in units of `factor` log2) and this lane's share of l for rows g + 8 half of each 16-row tile.
template <int m>
struct running_softmax {
  float maximum[m][2], sum[m][2];
  /// The base of the exponent is raised only when some row of the warp would exceed 2^8 times it: the sum and the
  /// output carry the same factor, so results differ only in rounding, and most rescales are saved.
  static constexpr float slack = 8.f;

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) maximum[i][half] = -infinity, sum[i][half] = 0.f;
  }

  /// S becomes P = 2^(factor s - base); `o` is brought to the new base.
  template <int n, int on>
  __device__ __forceinline__ void step(accumulators<m, n>& s, accumulators<m, on>& o, float factor) {
    float raised[m][2];
    bool rescale = false;
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float x = s[i][0].x[2 * half];
#pragma unroll
        for (int j = 0; j < n; ++j) x = fmaxf(x, fmaxf(s[i][j].x[2 * half], s[i][j].x[2 * half + 1]));
        raised[i][half] = fmaxf(maximum[i][half], row_max(x));
        rescale |= (raised[i][half] - maximum[i][half]) * factor > slack;
      }
    if (__any_sync(0xffffffffu, rescale)) raise(raised, o, factor);
    float base[m][2];
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) base[i][half] = softmax::base_of(maximum[i][half]) * factor;
#pragma unroll
    for (int j = 0; j < n; ++j)  // in the order in which P V takes them
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& x = s[i][j].x[e];
          x = exp2_approximate(fmaf(x, factor, -base[i][e / 2]));
          sum[i][e / 2] += x;
        }
  }

 private:
  template <int on>
  __device__ __forceinline__ void raise(float const (&to)[m][2], accumulators<m, on>& o, float factor) {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float const down = exp2_approximate((maximum[i][half] - softmax::base_of(to[i][half])) * factor);
        maximum[i][half] = to[i][half];
        sum[i][half] *= down;
#pragma unroll
        for (int j = 0; j < on; ++j) o[i][j].x[2 * half] *= down, o[i][j].x[2 * half + 1] *= down;
      }
  }
};

}  // namespace lanewise::gpu
