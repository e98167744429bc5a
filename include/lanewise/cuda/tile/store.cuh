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

/// Rows row, row + 8, ... of this warp, each times factor[i][half]; columns first_column, ... of the tensor, those
/// below head_dim.
template <int head_dim, class E, int m, int n>
__device__ __forceinline__ void store_rows(row_target<E> to, int row, accumulators<m, n> const& c,
                                           float const (&factor)[m][2], int first_column = 0) {
  int const g = lane_index() / 4, t = lane_index() & 3;
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const r = row + 16 * i + 8 * half + g;
      E* const line = to.data + r * to.stride + first_column;
      float const scale = factor[i][half];
      if (sizeof(E) == 2 && to.aligned && !to.accumulate) {
        if constexpr (sizeof(E) == 2) {
#pragma unroll
          for (int j = 0; j < n; j += 4) {
            std::uint32_t w[4];
#pragma unroll
            for (int x = 0; x < 4; ++x)
              w[x] = j + x >= n ? 0 : pack(E{}, c[i][j + x].x[2 * half] * scale, c[i][j + x].x[2 * half + 1] * scale);
            transpose_quad(w);
            if (r < to.valid && (n % 4 == 0 || j + t < n) && first_column + (j + t) * 8 < head_dim)
              *reinterpret_cast<uint4*>(line + (j + t) * 8) = {w[0], w[1], w[2], w[3]};
          }
        }
      } else if (r < to.valid) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
          if (first_column + j * 8 >= head_dim) break;
          E* const at = line + j * 8 + 2 * t;
          float const x = c[i][j].x[2 * half] * scale, y = c[i][j].x[2 * half + 1] * scale;
          if constexpr (sizeof(E) == 4) {
            if (to.aligned) {
              float2 const old = to.accumulate ? *reinterpret_cast<float2 const*>(at) : float2{-0.f, -0.f};
              *reinterpret_cast<float2*>(at) = {old.x + x, old.y + y};
              continue;
            }
          }
          store_element(at, x, to.accumulate);
          store_element(at + 1, y, to.accumulate);
        }
      }
    }
}

}  // namespace lanewise::gpu
