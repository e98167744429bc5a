// Softmax steps on the accumulators of a warpgroup, c[N / 8] on lane_maps::wgmma_m64: a lane holds two rows, g and g +
// 8 of its warp's 16. The rules are those of softmax.hpp; what differs from tile/softmax.cuh is that O is being added
// to by the tensor cores meanwhile, so that its rescaling is only asked for here.
#pragma once

#include "softmax.cuh"

namespace lanewise::gpu {

/// m (before the factor) and this lane's share of l.
struct row_softmax {
  float maximum[2] = {-infinity, -infinity}, sum[2] = {0.f, 0.f};
  /// As in running_softmax: the base is raised only when some row of the warp would exceed 2^8 times it.
  static constexpr float slack = 8.f;

  /// Takes a tile's scores into the maximum. True where the base was raised: `down` is what the sum was and O is to be
  /// multiplied by. Most tiles raise nothing, which a vote on what each lane holds of its rows already tells. Eight
  /// chains, since one is a latency of some six cycles a step.
  template <int n>
  __device__ __forceinline__ bool raise(accumulators<1, n> const& s, float factor, float (&down)[2]) {
    float raised[2];
    bool above = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = s[0][i / 2].x[2 * half + i % 2];
#pragma unroll
      for (int j = 2; j < n; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) x[2 * (j % 2) + c] = fmaxf(x[2 * (j % 2) + c], s[0][j].x[2 * half + c]);
      raised[half] = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
      above |= (raised[half] - maximum[half]) * factor > slack;  // false where both are -infinity
    }
    if (!__any_sync(0xffffffffu, above)) return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      raised[half] = fmaxf(maximum[half], row_max(raised[half]));
      down[half] = exp2_approximate((maximum[half] - softmax::base_of(raised[half])) * factor);
      maximum[half] = raised[half];
      sum[half] *= down[half];
    }
    return true;
  }

  /// S becomes P = 2^(factor s - base) and is added to the sum.
  template <int n>
  __device__ __forceinline__ void exponentiate(accumulators<1, n>& s, float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const base = softmax::base_of(maximum[half]) * factor;
      float part[2] = {};
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[0][j].x[2 * half + c];
          x = exp2_approximate(fmaf(x, factor, -base));
          part[c] += x;
        }
      sum[half] += part[0] + part[1];
    }
  }
};

/// P rounded to E as the A operand of the next product: its 16 columns 16 i ... are blocks 2 i and 2 i + 1.
template <class E, int n>
__device__ __forceinline__ void feed_rows(std::uint32_t (&a)[n / 2][4], accumulators<1, n> const& p) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      accumulator const& from = p[0][2 * i + r / 2];
      a[i][r] = pack(E{}, from.x[2 * (r % 2)], from.x[2 * (r % 2) + 1]);
    }
}

}  // namespace lanewise::gpu
