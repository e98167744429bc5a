// A tile [rows][width] of one operand in shared memory, row-major in chunks of 16 bytes, with the chunks of a row
// permuted so that eight rows of one column of chunks lie in eight different bank groups: cp.async writes and ldmatrix
// reads, plain or transposed, are then free of bank conflicts without padding.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

template <class E, int rows_, int width_>
struct shared_tile {
  using element = E;
  static constexpr int rows = rows_, width = width_;
  static constexpr int chunk = 16 / int(sizeof(E));  ///< elements of 16 bytes
  static constexpr int per_row = width / chunk;
  static constexpr int row_bytes = width * int(sizeof(E)), bytes = rows * row_bytes;
  static_assert(width % chunk == 0 && per_row % 4 == 0, "shared_tile: a row is a multiple of 64 bytes");

  std::uint32_t base;  ///< in the shared window, aligned to 128

  /// Rows of a multiple of 128 bytes repeat their banks every row, rows of an odd multiple of 64 every other row.
  static constexpr int permuted = per_row % 8 == 0 ? 8 : 4;  ///< chunks that change places among themselves
  __device__ static constexpr int swizzle(int row) { return permuted == 8 ? row & 7 : (row >> 1) & 3; }
  __device__ std::uint32_t address(int row, int chunk_index) const {
    return base + std::uint32_t(row * row_bytes + ((chunk_index ^ swizzle(row)) << 4));
  }
  /// The address `down` rows below and `right` chunks beside (row, chunk_index). `down` is a multiple of 8 and `right`
  /// has no bit in common with chunk_index, so that the two permute as one XOR the other: an operand's loads, whose row
  /// and chunk depend on the lane and whose `down` and `right` the compiler knows, share few registers. A tf32 backward
  /// at width 128 is 18% faster than with every address computed afresh; a 16-bit forward, whose loads are few, is 5%
  /// slower.
  __device__ std::uint32_t address_from(int row, int chunk_index, int down, int right) const {
    if constexpr (sizeof(E) == 2) return address(down + row, right + chunk_index);
    std::uint32_t const of_lane = std::uint32_t(row * row_bytes + ((chunk_index ^ swizzle(row)) << 4));
    return base + std::uint32_t(down * row_bytes + ((right & ~(permuted - 1)) << 4)) +
           (of_lane ^ std::uint32_t((right & (permuted - 1)) << 4));
  }
  __device__ shared_tile stage(int index) const { return {base + std::uint32_t(index * bytes)}; }
  /// `count` rows from a multiple of eight on.
  template <int count>
  __device__ shared_tile<E, count, width> rows_from(int row) const {
    return {base + std::uint32_t(row * row_bytes)};
  }
  __device__ void zero_row(int row) const;
};

__device__ __forceinline__ std::uint32_t shared_address(void const* p) {
  return std::uint32_t(__cvta_generic_to_shared(p));
}

/// threadIdx.x, hidden from the optimiser: what is computed from it is not kept in registers across a loop.
__device__ __forceinline__ int thread_index_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// x, its origin hidden from the optimiser: what is computed from it is not kept in registers across a loop, nor are
/// the numbers that x came from.
__device__ __forceinline__ std::int32_t anew(std::int32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ float load_shared(std::uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float2 load_shared_2(std::uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ float4 load_shared_4(std::uint32_t address) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(address)
               : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_4(std::uint32_t address, std::uint32_t x, std::uint32_t y, std::uint32_t z,
                                               std::uint32_t w) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
template <class E, int rows_, int width_>
__device__ void shared_tile<E, rows_, width_>::zero_row(int row) const {
#pragma unroll 1
  for (int c = 0; c < per_row; ++c) store_shared_4(base + std::uint32_t(row * row_bytes + 16 * c), 0, 0, 0, 0);
}
__device__ __forceinline__ std::uint32_t load_shared_word(std::uint32_t address) {
  std::uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}
__device__ __forceinline__ void store_shared_word(std::uint32_t address, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

}  // namespace lanewise::gpu
