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

/// Whether rows go out 16 bytes a lane.
template <class E>
__device__ __forceinline__ bool takes_16_bytes(row_target<E> const& to) {
  return sizeof(E) == 2 && to.aligned && !to.accumulate;
}

/// This lane's part of row r of an accumulator tile, n blocks of 8 columns from `column` on, a multiple of 8, each
/// times `scale`; columns below head_dim. All lanes of a warp call it; where takes_16_bytes(), four blocks at a time.
template <int head_dim, class E, int n>
__device__ __forceinline__ void store_row_16_bytes(row_target<E> const& to, int r, int column, float2 const (&x)[n],
                                                   float scale) {
  static_assert(n % 4 == 0 && sizeof(E) == 2);
  int const t = lane_index() & 3;
  E* const line = to.data + r * to.stride + column;
#pragma unroll
  for (int j = 0; j < n; j += 4) {
    std::uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = pack(E{}, x[j + i].x * scale, x[j + i].y * scale);
    transpose_quad(w);
    if (r < to.valid && column + (j + t) * 8 < head_dim)
      *reinterpret_cast<uint4*>(line + (j + t) * 8) = {w[0], w[1], w[2], w[3]};
  }
}
/// The same for any target, of any n.
template <int head_dim, class E, int n>
__device__ __forceinline__ void store_row_by_element(row_target<E> const& to, int r, int column, float2 const (&x)[n],
                                                     float scale) {
  if (r >= to.valid) return;
  E* const line = to.data + r * to.stride + column + 2 * (lane_index() & 3);
#pragma unroll
  for (int j = 0; j < n; ++j) {
    if (column + j * 8 >= head_dim) break;
    E* const at = line + j * 8;
    float2 const y = {x[j].x * scale, x[j].y * scale};
    if constexpr (sizeof(E) == 4) {
      if (to.aligned) {
        float2 const old = to.accumulate ? *reinterpret_cast<float2 const*>(at) : float2{-0.f, -0.f};
        *reinterpret_cast<float2*>(at) = {old.x + y.x, old.y + y.y};
        continue;
      }
    }
    store_element(at, y.x, to.accumulate);
    store_element(at + 1, y.y, to.accumulate);
  }
}

/// Rows row, row + 8, ... of this warp, each times factor[i][half]; columns below head_dim.
template <int head_dim, class E, int m, int n>
__device__ __forceinline__ void store_rows(row_target<E> to, int row, accumulators<m, n> const& c,
                                           float const (&factor)[m][2]) {
#pragma unroll
  for (int i = 0; i < m; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 x[n];
#pragma unroll
      for (int j = 0; j < n; ++j) x[j] = {c[i][j].x[2 * half], c[i][j].x[2 * half + 1]};
      int const r = row + 16 * i + 8 * half + lane_index() / 4;
      if (takes_16_bytes(to)) {
        if constexpr (sizeof(E) == 2) store_row_16_bytes<head_dim>(to, r, 0, x, factor[i][half]);
      } else {
        store_row_by_element<head_dim>(to, r, 0, x, factor[i][half]);
      }
    }
}

}  // namespace lanewise::gpu
