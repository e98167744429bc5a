// A tile [rows][columns] of one operand in shared memory as TMA writes and wgmma reads it: slabs of `span` bytes a row,
// one after the other, the 16-byte chunks of a row permuted within eight rows.
//
//   byte (row, column) = slab rows span + row span + ((c ^ (row / (128 / span)) % (span / 16)) 16) + rest
//   slab = column / (span / sizeof(E)),  c = the chunk of the column in its slab row,  rest = the byte in the chunk
//
// The same bytes serve as a K-major operand (rows are M or N, columns K: Q and K in Q K^T) and as an MN-major one (rows
// are K, columns N: V in P V), so that nothing is ever transposed.
#pragma once

#include <cstdint>

#include "../../host_device.hpp"
#include "shared_tile.cuh"

namespace lanewise::gpu {

/// A shared-memory descriptor of wgmma. Bits 0-13 address / 16, 16-29 leading byte offset / 16, 32-45 stride byte
/// offset / 16, 62-63 swizzle: 1 is 128 bytes, 2 is 64, 3 is 32. Tiles start at a multiple of 8 rows of a slab, so that
/// the base offset (bits 49-51) is 0. Only the low word differs between the products of a tile, by whole numbers that
/// are added to it: shared addresses end below 2^18, so that no carry leaves the address.
struct wgmma_operand {
  std::uint32_t low, high;

  wgmma_operand() = default;
  __device__ wgmma_operand(std::uint32_t address, int leading, int stride, int span)
      : low(address >> 4 | std::uint32_t(leading >> 4) << 16),
        high(std::uint32_t(stride >> 4) | std::uint32_t(span == 128  ? 1
                                                        : span == 64 ? 2
                                                                     : 3)
                                              << 30) {}
  /// The same, known to be one for the whole warp: what is added to it is added in uniform registers, from which wgmma
  /// reads its descriptors, instead of lane by lane with four moves a product.
  __device__ wgmma_operand of_warp() const {
    wgmma_operand x = *this;
    x.low = __shfl_sync(0xffffffffu, x.low, 0);
    return x;
  }
  /// The operand `bytes` further on.
  __device__ std::uint64_t operator+(int bytes) const {
    return std::uint64_t(high) << 32 | std::uint32_t(low + std::uint32_t(bytes >> 4));
  }
};

template <class E, int rows_, int columns_, int span_ = 128>
struct swizzled_tile {
  using element = E;
  static constexpr int rows = rows_, columns = columns_, span = span_;
  static constexpr int slab_columns = span / int(sizeof(E)), slabs = (columns + slab_columns - 1) / slab_columns;
  static constexpr int slab_bytes = rows * span, bytes = slabs * slab_bytes;
  static constexpr int alignment = 8 * span;  ///< the swizzle repeats every eight rows
  static_assert(span == 128 || span == 64 || span == 32, "swizzled_tile: wgmma knows these swizzles");
  static_assert(rows % 8 == 0 && slab_bytes < 1 << 18, "swizzled_tile: offsets of a descriptor end below 256 KiB");

  std::uint32_t base;  ///< in the shared window, a multiple of `alignment`

  __device__ swizzled_tile stage(int index) const { return {base + std::uint32_t(index * bytes)}; }
  __device__ std::uint32_t slab(int index) const { return base + std::uint32_t(index * slab_bytes); }

  /// Shared address of eight (16-bit) columns of a row, the chunk-th of it.
  __device__ std::uint32_t chunk(int row, int chunk) const {
    constexpr int chunks = span / 16;
    return slab(chunk / chunks) + std::uint32_t(row * span + (chunk ^ row / (128 / span)) % chunks * 16);
  }
  /// K-major operand of the rows from `row` (a multiple of 8) on; its columns k ... k + 15 are `column_offset(k)`
  /// further. Eight rows are a stride; the leading offset is not read.
  __device__ wgmma_operand rows_from(int row) const { return {base + std::uint32_t(row * span), 16, 8 * span, span}; }
  LANEWISE_HD static constexpr int column_offset(int k) {
    return k / slab_columns * slab_bytes + k % slab_columns * int(sizeof(E));
  }
  /// MN-major operand of all columns; its rows k ... k + 15 are `row_offset(k)` further. Eight rows are a stride, the
  /// leading offset is a slab.
  __device__ wgmma_operand all_columns() const { return {base, slab_bytes, 8 * span, span}; }
  LANEWISE_HD static constexpr int row_offset(int k) { return k * span; }

  /// Zeroes one row; the swizzle moves chunks within a row only.
  __device__ void zero_row(int row) const {
#pragma unroll 1
    for (int s = 0; s < slabs; ++s)
#pragma unroll
      for (int chunk = 0; chunk < span; chunk += 16)
        store_shared_4(slab(s) + std::uint32_t(row * span + chunk), 0, 0, 0, 0);
  }
};

}  // namespace lanewise::gpu
