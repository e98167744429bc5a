// Rows of a tensor into a shared tile by all threads of a block. Rows past `valid` and columns past the head dim are
// written as zeros, so that products over a padded tile add nothing.
//
// A transfer is such a copy under way: start() asks for the rows, finish() completes it. What is used as it is stored
// goes by cp.async, past the registers; what is converted waits in registers and is written once, as products read it:
// to copy first and convert in place took a third of the shared-memory traffic of a backward in tf32.
#pragma once

#include <cstdint>

#include "../instruction/cp_async.cuh"
#include "../instruction/mma.cuh"
#include "shared_tile.cuh"

namespace lanewise::gpu {

/// Eight or four elements read one by one: for addresses that are not multiples of 16 bytes.
template <class E>
__device__ __forceinline__ void copy_chunk_by_element(std::uint32_t to, E const* from, bool inside) {
  std::uint32_t word[4] = {};
  if (inside) {
    if constexpr (sizeof(E) == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = bit_cast<std::uint32_t>(from[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) word[i] = std::uint32_t(from[2 * i].bits) | std::uint32_t(from[2 * i + 1].bits) << 16;
    }
  }
  store_shared_4(to, word[0], word[1], word[2], word[3]);
}

/// Starts the copy of `valid` rows, `stride` elements apart, head_dim columns each; the caller commits the group.
/// `aligned`: every row starts at a multiple of 16 bytes. A thread's chunks lie `threads` apart, so that it walks one
/// pointer down its column where a row's chunks divide the threads.
template <int threads, int head_dim, class Tile, class E = typename Tile::element>
__device__ __forceinline__ void copy_rows(Tile to, E const* from, std::int64_t stride, int valid, bool aligned) {
  constexpr int chunks = Tile::rows * Tile::per_row, rows_apart = threads / Tile::per_row;
  constexpr bool walks = threads % Tile::per_row == 0;
  auto const in_row = [](int column) { return head_dim == Tile::width || column * Tile::chunk < head_dim; };
  int const thread = thread_index_anew();
  if (!aligned) {
#pragma unroll 1
    for (int c = thread; c < chunks; c += threads) {
      int const row = c / Tile::per_row, column = c % Tile::per_row;
      copy_chunk_by_element(to.address(row, column), from + row * stride + column * Tile::chunk,
                            row < valid && in_row(column));
    }
    return;
  }
  int row = thread / Tile::per_row, column = thread % Tile::per_row;
  E const* source = from + row * stride + column * Tile::chunk;
#pragma unroll
  for (int first = 0; first < chunks; first += threads) {
    if (chunks % threads != 0 && first + thread >= chunks) break;
    bool const inside = row < valid && in_row(column);
    cp_async_16(to.address(row, column), inside ? source : from, inside);
    if constexpr (walks) {
      row += rows_apart;
      source += rows_apart * stride;
    } else {
      int const next = first + threads + thread;
      row = next / Tile::per_row, column = next % Tile::per_row;
      source = from + row * stride + column * Tile::chunk;
    }
  }
}

/// By cp.async; the caller commits the group, and waits for it in place of finish().
template <int threads, int head_dim, class Tile>
struct async_transfer {
  static constexpr int registers = 0;
  template <class E>
  __device__ __forceinline__ void start(Tile to, E const* from, std::int64_t stride, int valid, bool aligned) {
    copy_rows<threads, head_dim>(to, from, stride, valid, aligned);
  }
  __device__ __forceinline__ void finish(Tile) const {}
};

/// Four f32 of a row.
__device__ __forceinline__ float4 load_global_4(float const* from, bool aligned) {
  if (aligned) return *reinterpret_cast<float4 const*>(from);
  return {from[0], from[1], from[2], from[3]};
}

/// Rounded to tf32 on the way. `rows` of the tile from `first` on.
template <int threads, int head_dim, class Tile, int rows = Tile::rows>
class rounding_transfer {
  static constexpr int chunks = rows * Tile::per_row, count = (chunks + threads - 1) / threads;
  float4 x_[count];

 public:
  static constexpr int registers = 4 * count;

  __device__ __forceinline__ void start(Tile, float const* from, std::int64_t stride, int valid, bool aligned) {
    if (aligned) load<true>(from, stride, valid);
    else load<false>(from, stride, valid);
  }
  __device__ __forceinline__ void finish(Tile to, int first = 0) const {
    int const thread = thread_index_anew();
#pragma unroll
    for (int i = 0; i < count; ++i) {
      int const c = i * threads + thread;
      if (chunks % threads != 0 && c >= chunks) break;
      float4 const x = x_[i];
      store_shared_4(to.address(first + c / Tile::per_row, c % Tile::per_row), round_to_tf32(x.x), round_to_tf32(x.y),
                     round_to_tf32(x.z), round_to_tf32(x.w));
    }
  }

 private:
  template <bool aligned>
  __device__ __forceinline__ void load(float const* from, std::int64_t stride, int valid) {
    constexpr bool walks = threads % Tile::per_row == 0;
    int const thread = thread_index_anew();
    int row = thread / Tile::per_row, column = thread % Tile::per_row;
    float const* source = from + row * stride + column * Tile::chunk;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      bool const inside = row < valid && (head_dim == Tile::width || column * Tile::chunk < head_dim) &&
                          (chunks % threads == 0 || i * threads + thread < chunks);
      x_[i] = inside ? load_global_4(source, aligned) : float4{};
      if constexpr (walks) {
        row += threads / Tile::per_row;
        source += threads / Tile::per_row * stride;
      } else {
        int const next = (i + 1) * threads + thread;
        row = next / Tile::per_row, column = next % Tile::per_row;
        source = from + row * stride + column * Tile::chunk;
      }
    }
  }
};

/// Zeroes the rows for which dead(row) holds.
template <int threads, class Tile, class Dead>
__device__ __forceinline__ void zero_rows(Tile tile, Dead const& dead) {
  for (int c = thread_index_anew(); c < Tile::rows * Tile::per_row; c += threads)
    if (dead(c / Tile::per_row)) store_shared_4(tile.address(c / Tile::per_row, c % Tile::per_row), 0, 0, 0, 0);
}

}  // namespace lanewise::gpu
