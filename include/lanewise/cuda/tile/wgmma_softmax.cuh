// Softmax steps on the accumulators of a warpgroup, c[N / 8] on lane_maps::wgmma_m64: a lane holds two rows, g and g +
// 8 of its warp's 16. The rules are those of softmax.hpp; what differs from tile/softmax.cuh is that O is being added
// to by the tensor cores meanwhile, so that its rescaling is only asked for here.
#pragma once

#include <type_traits>

#include "softmax.cuh"

namespace lanewise::gpu {

/// The base b of each row in log2 units and this lane's share of l, where P = 2^(factor s - b). A base is `room` above
/// the largest score of the tile that set it, and stays until some P has grown to 2: then the highest bit of its
/// exponent is set, in bf16 and f16 alike, and one `or` over all P, three numbers an instruction, finds it. The maximum
/// that the textbook takes before the first exponential costs two instructions a number, 11 % of a step at head dim 128.
template <class E>
struct row_softmax {
  float base[2] = {-infinity, -infinity}, sum[2] = {0.f, 0.f};
  float added[2];  ///< of the tile at hand
  /// bf16 has the range of f32. f16 ends at 2^-24: 2^-21 of the largest P is then its least step.
  static constexpr float room = std::is_same_v<E, f16> ? 3.f : 7.f;

  /// True where some row of the warp has not seen a key yet.
  __device__ __forceinline__ bool any_without_base() const {
    return __any_sync(0xffffffffu, base[0] == -infinity || base[1] == -infinity);
  }
  /// The base of every row to hold the tile's scores too; `down` is what l was and O is to be multiplied by.
  template <int n>
  __device__ __forceinline__ void set_base(accumulators<1, n> const& s, float factor, float (&down)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = s[0][i / 2].x[2 * half + i % 2];
#pragma unroll
      for (int j = 2; j < n; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) x[2 * (j % 2) + c] = fmaxf(x[2 * (j % 2) + c], s[0][j].x[2 * half + c]);
      float const largest = row_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
      float const raised = fmaxf(base[half], largest * factor + room);
      down[half] = exp2_approximate(base[half] - softmax::base_of(raised));
      base[half] = raised;
      sum[half] *= down[half];
    }
  }
  /// S becomes P.
  template <int n>
  __device__ __forceinline__ void exponentiate(accumulators<1, n>& s, float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float const b = softmax::base_of(base[half]);
      float part[2] = {};
#pragma unroll
      for (int j = 0; j < n; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& x = s[0][j].x[2 * half + c];
          x = exp2_approximate(fmaf(x, factor, -b));
          part[c] += x;
        }
      added[half] = part[0] + part[1];
    }
  }
  /// Takes P into l, once it is known not to exceed its bound.
  __device__ __forceinline__ void add() { sum[0] += added[0], sum[1] += added[1]; }
  /// Some P of the warp, rounded, is 2 or more, or NaN.
  template <int m>
  static __device__ __forceinline__ bool exceeds(std::uint32_t const (&p)[m][4]) {
    std::uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < m; ++i) all |= p[i][0] | p[i][1] | p[i][2] | p[i][3];
    return __any_sync(0xffffffffu, (all & 0x40004000u) != 0);
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
