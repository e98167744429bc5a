// f32 rows in shared memory as two f16 limbs of each element: where 8 elements of a row would lie, 8 high limbs and
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
#include "copy.cuh"
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
    __device__ std::uint32_t address_from(int row, int chunk_index, int down, int right) const {
      return tile.rows_in_f32::address_from(row, 2 * chunk_index, down, 2 * right + index);
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

/// Rows of f32 split on the way (see copy.cuh): `rows` of the tile from `first` on. The lanes of a row hold 8 elements
/// of it each, again and again, and find its largest magnitude before they write their limbs.
template <int threads, int head_dim, class Tile, int rows = Tile::rows>
class splitting_transfer {
  static constexpr int lanes = threads >= 8 * rows ? 8 : 4, at_once = threads / lanes;
  static constexpr int passes = (rows + at_once - 1) / at_once, pairs = Tile::width / 8,
                       count = (pairs + lanes - 1) / lanes;
  float4 x_[passes][count][2];

 public:
  static constexpr int registers = 8 * passes * count;

  __device__ __forceinline__ void start(Tile, float const* from, std::int64_t stride, int valid, bool aligned) {
    if (aligned) load<true>(from, stride, valid);
    else load<false>(from, stride, valid);
  }

  __device__ __forceinline__ void finish(Tile to, int first = 0) const {
    int const thread = thread_index_anew(), lane = thread % lanes;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      int const row = pass * at_once + thread / lanes;
      limb_scale const s = limb_scale_of(largest(pass));
      if (rows % at_once != 0 && row >= rows) break;
      if (lane == 0) store_shared_word(to.factor_address(first + row), bit_cast<std::uint32_t>(s.down));
#pragma unroll
      for (int i = 0; i < count; ++i) {
        int const pair = i * lanes + lane;
        if (pairs % lanes != 0 && pair >= pairs) break;
        put(to, first + row, pair, x_[pass][i][0], x_[pass][i][1], s.up);
      }
    }
  }

 private:
  template <bool aligned>
  __device__ __forceinline__ void load(float const* from, std::int64_t stride, int valid) {
    int const thread = thread_index_anew(), lane = thread % lanes;
    float const* source = from + thread / lanes * stride + 8 * lane;
#pragma unroll
    for (int pass = 0; pass < passes; ++pass) {
      int const row = pass * at_once + thread / lanes;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        bool const inside =
            row < valid && (head_dim == Tile::width && pairs % lanes == 0 || 8 * (i * lanes + lane) < head_dim);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          x_[pass][i][half] = inside ? load_global_4(source + 8 * lanes * i + 4 * half, aligned) : float4{};
      }
      source += at_once * stride;
    }
  }
  /// Of the row of a pass, over its lanes.
  __device__ __forceinline__ float largest(int pass) const {
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < count; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 const x = x_[pass][i][half];
        most = fmaxf(fmaxf(fmaxf(most, fabsf(x.x)), fmaxf(fabsf(x.y), fabsf(x.z))), fabsf(x.w));
      }
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
  }
  __device__ __forceinline__ static void put(Tile to, int row, int pair, float4 x, float4 y, float up) {
    std::uint32_t high[4], low[4];
    split(f16{}, high[0], low[0], x.x * up, x.y * up);
    split(f16{}, high[1], low[1], x.z * up, x.w * up);
    split(f16{}, high[2], low[2], y.x * up, y.y * up);
    split(f16{}, high[3], low[3], y.z * up, y.w * up);
    store_shared_4(to.address(row, 2 * pair), high[0], high[1], high[2], high[3]);
    store_shared_4(to.address(row, 2 * pair + 1), low[0], low[1], low[2], low[3]);
  }
};

}  // namespace lanewise::gpu
