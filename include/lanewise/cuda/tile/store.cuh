// Accumulators to rows of a tensor in global memory: 16 bytes a lane for 16-bit types, 8 for f32, element by element
// where rows are not aligned or 16-bit results are added to what is there.
#pragma once

#include <cstdint>

#include "../../precision.hpp"
#include "../instruction/mma.cuh"
#include "gemm.cuh"

namespace lanewise::gpu {

/// Where a tile of rows goes: `data` is its row 0, `valid` rows exist.
template <class E>
struct row_target {
  E* data;
  std::int64_t stride;
  int valid;
  bool aligned, accumulate;
};

/// Word i of lane t becomes word t of lane i, for the four lanes of a row.
__device__ __forceinline__ void transpose_quad(std::uint32_t (&w)[4]) {
  int const t = lane_index() & 3;
#pragma unroll
  for (int s = 1; s <= 2; s *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!(i & s)) {
        std::uint32_t const got = __shfl_xor_sync(0xffffffffu, t & s ? w[i] : w[i | s], s);
        if (t & s) w[i] = got;
        else w[i | s] = got;
      }
}

template <class E>
__device__ __forceinline__ void store_element(E* to, float x, bool accumulate) {
  *to = from_float<E>(accumulate ? to_float(*to) + x : x);
}

/// Two neighbours of a row, at an even element.
template <class E>
__device__ __forceinline__ void store_pair(row_target<E> const& to, E* at, float x, float y) {
  if constexpr (sizeof(E) == 2) {
    if (to.aligned && !to.accumulate) {
      *reinterpret_cast<std::uint32_t*>(at) = pack(E{}, x, y);
      return;
    }
  } else if (to.aligned) {
    float2 const old = to.accumulate ? *reinterpret_cast<float2 const*>(at) : float2{-0.f, -0.f};
    *reinterpret_cast<float2*>(at) = {old.x + x, old.y + y};
    return;
  }
  store_element(at, x, to.accumulate);
  store_element(at + 1, y, to.accumulate);
}

/// Rows row, row + 8, ... of this warp, each times factor[i][half]; columns below head_dim.
template <int head_dim, class E, int m, int n>
__device__ __forceinline__ void store_rows(row_target<E> to, int row, accumulators<m, n> const& c,
                                           float const (&factor)[m][2]) {
  int const g = lane_index() / 4, t = lane_index() & 3;
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row + 16 * i + 8 * half + g;
      E* const line = to.data + r * to.stride;
      float const scale = factor[i][half];
      if (sizeof(E) == 2 && to.aligned && !to.accumulate) {
        if constexpr (sizeof(E) == 2) {
#pragma unroll
          for (int j = 0; j < n; j += 4) {
            std::uint32_t w[4];
#pragma unroll
            for (int x = 0; x < 4; ++x)
              w[x] = pack(E{}, c[i][j + x].x[2 * half] * scale, c[i][j + x].x[2 * half + 1] * scale);
            transpose_quad(w);
            if (r < to.valid && (j + t) * 8 < head_dim)
              *reinterpret_cast<uint4*>(line + (j + t) * 8) = {w[0], w[1], w[2], w[3]};
          }
        }
      } else if (r < to.valid) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
          if (j * 8 >= head_dim) break;
          store_pair(to, line + j * 8 + 2 * t, c[i][j].x[2 * half] * scale, c[i][j].x[2 * half + 1] * scale);
        }
      }
    }
}

}  // namespace lanewise::gpu
