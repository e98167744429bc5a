// f32 rows in shared memory as two f16 limbs of each element, in place: where 8 elements of a row lay, 8 high limbs and
// then 8 low limbs lie, each a chunk that ldmatrix reads.
//
//   x s = high + low,  high = round(x s),  low = round(x s - high),  s a power of two that brings the row's largest
//   magnitude into [2^14, 2^15)
//
// An element of at least 2^-18 times the row's largest keeps 22 bits, a smaller one an absolute error of 2^-40 times
// the largest. Rows are scaled one by one, so that no row's accuracy depends on another's content. Rows whose largest
// magnitude is below 2^-112 lose bits, above 2^100 products may overflow; infinities become NaN.
#pragma once

#include <cstdint>

#include "../instruction/mma.cuh"
#include "shared_tile.cuh"

namespace lanewise::gpu {

/// Over the four lanes that share a row, on the C map.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <int rows_, int width_>
struct split_tile : shared_tile<float, rows_, width_> {
  using rows_in_f32 = shared_tile<float, rows_, width_>;
  /// The rows, then 1 / s of each.
  static constexpr int bytes = rows_in_f32::bytes + (rows_ * 4 + 127) / 128 * 128;

  struct limb {
    static constexpr int chunk = 8;
    split_tile tile;
    int index;
    __device__ std::uint32_t address(int row, int chunk_index) const {
      return tile.rows_in_f32::address(row, 2 * chunk_index + index);
    }
  };
  __device__ limb high() const { return {*this, 0}; }
  __device__ limb low() const { return {*this, 1}; }
  __device__ std::uint32_t factor_address(int row) const { return this->base + rows_in_f32::bytes + row * 4; }
  __device__ split_tile stage(int index) const { return {{this->base + std::uint32_t(index * bytes)}}; }
};

/// s and 1 / s for the largest magnitude of a row.
struct limb_scale {
  float up, down;
};
__device__ __forceinline__ limb_scale limb_scale_of(float largest) {
  std::uint32_t const exponent = max(bit_cast<std::uint32_t>(largest) >> 23, 15u);
  return {bit_cast<float>((268 - exponent) << 23), bit_cast<float>((exponent - 14) << 23)};
}

/// Splits the rows that copy_rows brought, four lanes a row; between two barriers. Rows are read twice, since a row of
/// 256 held in registers beside the accumulators would not fit.
template <int threads, class Tile>
__device__ __forceinline__ void split_rows(Tile tile) {
  constexpr int lanes = 4, pairs = Tile::width / 8;
  int const thread = thread_index_anew() & (threads - 1), lane = thread % lanes;
  auto const for_each_pair = [&](auto const& visit) {
#pragma unroll 2
    for (int first = 0; first < pairs; first += lanes)
      if (pairs % lanes == 0 || first + lane < pairs) visit(first + lane);
  };
#pragma unroll 1
  for (int row = thread / lanes; row < Tile::rows; row += threads / lanes) {
    float largest = 0.f;
    for_each_pair([&](int pair) {
      for (int half = 0; half < 2; ++half) {
        float4 const x = load_shared_4(tile.address(row, 2 * pair + half));
        largest = fmaxf(fmaxf(fmaxf(largest, fabsf(x.x)), fmaxf(fabsf(x.y), fabsf(x.z))), fabsf(x.w));
      }
    });
    limb_scale const s = limb_scale_of(row_max(largest));
    if (lane == 0) store_shared_word(tile.factor_address(row), bit_cast<std::uint32_t>(s.down));
    for_each_pair([&](int pair) {
      float4 const x = load_shared_4(tile.address(row, 2 * pair)), y = load_shared_4(tile.address(row, 2 * pair + 1));
      std::uint32_t high[4], low[4];
      split(f16{}, high[0], low[0], x.x * s.up, x.y * s.up);
      split(f16{}, high[1], low[1], x.z * s.up, x.w * s.up);
      split(f16{}, high[2], low[2], y.x * s.up, y.y * s.up);
      split(f16{}, high[3], low[3], y.z * s.up, y.w * s.up);
      store_shared_4(tile.address(row, 2 * pair), high[0], high[1], high[2], high[3]);
      store_shared_4(tile.address(row, 2 * pair + 1), low[0], low[1], low[2], low[3]);
    });
  }
}

}  // namespace lanewise::gpu
