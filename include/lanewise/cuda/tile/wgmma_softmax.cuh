// Softmax steps on the accumulators of a warpgroup, c[N / 8] on lane_maps::wgmma_m64: a lane holds two rows, g and g +
// 8 of its warp's 16. The rules are those of softmax.hpp; what differs from tile/softmax.cuh is that O is being added
// to by the tensor cores meanwhile, so that its rescaling is only asked for here.
#pragma once

#include "../../variant.hpp"
#include "scores.cuh"
#include "softmax.cuh"

namespace lanewise::gpu {

/// The variant on one tile of scores whose rows start at `row`. `masked`: pairs may be hidden or lie outside the tile.
template <int n, class F>
__device__ __forceinline__ void apply_variant_to_rows(accumulators<1, n>& s, F const& f, block const& tile, int row,
                                                      bool masked, score_scale scale) {
  if (!has_score<F> && scale.before != 1.f)
    for_each_element<1, n>(0, [&](int, int, int, int j, int e) { s[0][j].x[e] *= scale.before; });
  if (masked) {
    for_each_element<1, n>(row, [&](int r, int column, int, int j, int e) {
      position const at = position_in<rows_are::queries>(tile, r, column);
      float& x = s[0][j].x[e];
      if (at.q < tile.q_end && at.k < tile.k_end && keep(f, at)) {
        if constexpr (has_score<F>) x = score(f, x * scale.before, at) * log2_e;
      } else {
        x = -infinity;
      }
    });
  } else if constexpr (has_score<F>) {
    for_each_element<1, n>(row, [&](int r, int column, int, int j, int e) {
      float& x = s[0][j].x[e];
      x = score(f, x * scale.before, position_in<rows_are::queries>(tile, r, column)) * log2_e;
    });
  }
}

/// m (before the factor) and this lane's share of l.
struct row_softmax {
  float maximum[2] = {-infinity, -infinity}, sum[2] = {0.f, 0.f};
  /// As in running_softmax: the base is raised only when some row of the warp would exceed 2^8 times it.
  static constexpr float slack = 8.f;

  /// Takes a tile's scores into the maximum. True where the base was raised: `down` is what the sum was and O is to be
  /// multiplied by.
  template <int n>
  __device__ __forceinline__ bool raise(accumulators<1, n> const& s, float factor, float (&down)[2]) {
    float raised[2];
    bool above = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x = s[0][0].x[2 * half], y = s[0][0].x[2 * half + 1];
#pragma unroll
      for (int j = 1; j < n; ++j) x = fmaxf(x, s[0][j].x[2 * half]), y = fmaxf(y, s[0][j].x[2 * half + 1]);
      raised[half] = fmaxf(maximum[half], row_max(fmaxf(x, y)));
      above |= (raised[half] - maximum[half]) * factor > slack;
    }
    if (!__any_sync(0xffffffffu, above)) return false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
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
