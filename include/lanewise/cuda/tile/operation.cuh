// One struct per precision: what an operand fragment is, how it is loaded from a shared tile, how an accumulator
// becomes one, and the multiply-add. Kernels and gemm.cuh know nothing else about a precision; a new one is a new
// struct here.
//
//   a_fragment   16 rows of A for one step of K           load_a(lane, tile, row, k)
//   b_fragment   16 columns of B for one step of K        load_b_rows(lane, tile, n, k):    tile holds B^T, [n][k]
//                                                         load_b_columns(lane, tile, k, n): tile holds B,   [k][n]
//   fed          A from accumulators                      feed(c): c points to c_tiles neighbouring 16 x 8 tiles
//
// load_b_rows meets load_a, load_b_columns meets feed: only there may K be permuted.
#pragma once

#include "../../precision.hpp"
#include "../instruction/ldmatrix.cuh"
#include "../instruction/mma.cuh"
#include "../lane_map.hpp"
#include "copy.cuh"
#include "shared_tile.cuh"

namespace lanewise::gpu {

/// A 16 x 8 tile of C, four elements a lane, on the C map that all mma.sync shapes share.
struct accumulator {
  float x[4];
};
using c_map = lane_maps::m16n8k16;

__device__ __forceinline__ int lane_index() { return int(threadIdx.x & 31); }

/// The same, hidden from the optimiser: what is computed from it is not kept in registers across a loop.
__device__ __forceinline__ int lane_index_anew() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

template <precision P>
struct operation;

/// bf16 and f16 on m16n8k16.
template <class E>
struct operation_16_bit {
  using element = E;
  using map = lane_maps::m16n8k16;
  static constexpr int k = map::k, c_tiles = map::c_tiles_per_a;
  static constexpr int unroll = 16;             ///< steps of K in one stretch of code: all of them
  static constexpr bool promotes_sums = false;  ///< sums over tiles stay in the tensor core's accumulator
  static constexpr bool rounds_staged = false;  ///< shared tiles hold the operand as it is in memory
  struct a_fragment {
    std::uint32_t r[4];
  };
  struct b_fragment {
    std::uint32_t r[4];
  };
  using fed = a_fragment;

  template <class Tile>
  __device__ static a_fragment load_a(int lane, Tile tile, int row, int k0) {
    a_fragment f;
    ldmatrix(f.r, tile.address(row + (lane & 15), k0 / 8 + (lane >> 4)));
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    b_fragment f;
    ldmatrix(f.r, tile.address(n + (lane & 7) + ((lane >> 4) << 3), k0 / 8 + ((lane >> 3) & 1)));
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    b_fragment f;
    ldmatrix_transposed(f.r, tile.address(k0 + (lane & 15), n / 8 + (lane >> 4)));
    return f;
  }
  __device__ static fed feed(accumulator const* c) {
    return {{pack(E{}, c[0].x[0], c[0].x[1]), pack(E{}, c[0].x[2], c[0].x[3]), pack(E{}, c[1].x[0], c[1].x[1]),
             pack(E{}, c[1].x[2], c[1].x[3])}};
  }
  /// c[0], c[1] += a * the two halves of b
  __device__ static void multiply_add(accumulator* c, a_fragment const& a, b_fragment const& b) {
    mma_m16n8k16(E{}, c[0].x, a.r, b.r[0], b.r[1]);
    mma_m16n8k16(E{}, c[1].x, a.r, b.r[2], b.r[3]);
  }
  template <int threads, class Tile>
  __device__ static void round_staged(Tile) {}
};

template <>
struct operation<precision::bf16> : operation_16_bit<bf16> {};
template <>
struct operation<precision::f16> : operation_16_bit<f16> {};

/// bf16 storage; P and dS in two bf16 limbs, high = round(x), low = round(x - high): 16 bits of mantissa where the
/// inputs have 8. The small product goes first. Long sums leave the tensor core once a tile, whose adder truncates.
template <>
struct operation<precision::bf16_split> : operation_16_bit<bf16> {
  static constexpr bool promotes_sums = true;
  struct fed {
    a_fragment high, low;
  };
  __device__ static fed feed(accumulator const* c) {
    accumulator rest[2];
    fed f;
    f.high = operation_16_bit<bf16>::feed(c);
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        std::uint32_t const word = f.high.r[2 * i + e / 2];
        float const rounded = bit_cast<float>(e % 2 ? word & 0xffff0000u : word << 16);
        rest[i].x[e] = c[i].x[e] - rounded;
      }
    f.low = operation_16_bit<bf16>::feed(rest);
    return f;
  }
  using operation_16_bit<bf16>::multiply_add;
  __device__ static void multiply_add(accumulator* c, fed const& a, b_fragment const& b) {
    multiply_add(c, a.low, b);
    multiply_add(c, a.high, b);
  }
};

/// f32 storage, products in tf32 on m16n8k8. Staged tiles are rounded in shared memory, accumulators as they are fed.
template <>
struct operation<precision::tf32> {
  using element = float;
  using map = lane_maps::m16n8k8_tf32;
  static constexpr int k = map::k, c_tiles = map::c_tiles_per_a, unroll = 32;
  static constexpr bool promotes_sums = false, rounds_staged = true;
  struct a_fragment {
    std::uint32_t r[4];
  };
  struct b_fragment {
    std::uint32_t r[4];
  };
  using fed = a_fragment;

  template <class Tile>
  __device__ static a_fragment load_a(int lane, Tile tile, int row, int k0) {
    a_fragment f;
    ldmatrix(f.r, tile.address(row + (lane & 15), k0 / 4 + (lane >> 4)));
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    b_fragment f;
    ldmatrix(f.r, tile.address(n + (lane & 7) + ((lane >> 4) << 3), k0 / 4 + ((lane >> 3) & 1)));
    return f;
  }
  /// Rows in the map's permuted order; with the swizzle the 32 lanes read 32 different banks.
  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    b_fragment f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      lane_maps::element const at = map::b(lane, i % 2);
      f.r[i] = load_shared_word(tile.element_address(k0 + map::permuted_k(at.row), n + 8 * (i / 2) + at.column));
    }
    return f;
  }
  __device__ static fed feed(accumulator const* c) {
    fed f;
#pragma unroll
    for (int e = 0; e < 4; ++e) f.r[e] = round_to_tf32(c->x[map::fed_element(e)]);
    return f;
  }
  __device__ static void multiply_add(accumulator* c, a_fragment const& a, b_fragment const& b) {
    mma_m16n8k8_tf32(c[0].x, a.r, b.r[0], b.r[1]);
    mma_m16n8k8_tf32(c[1].x, a.r, b.r[2], b.r[3]);
  }
  template <int threads, class Tile>
  __device__ static void round_staged(Tile tile) {
    round_own_chunks<threads>(tile);
  }
};

/// f32 in FFMA, the strict reference on the GPU: the C map of the tensor cores, whose lanes gather whole rows of A and
/// their own columns of B. An accumulator is fed by shuffles within the four lanes that share its rows.
template <>
struct operation<precision::f32> {
  using element = float;
  static constexpr int k = 8, c_tiles = 1,
                       unroll = 2;  ///< with more, loads run ahead of 48 registers of operands and spill
  static constexpr bool promotes_sums = false, rounds_staged = false;
  struct a_fragment {
    float x[2][8];  ///< rows g and g + 8
  };
  struct b_fragment {
    float x[4][8];  ///< columns 2t, 2t + 1, 8 + 2t, 8 + 2t + 1
  };
  using fed = a_fragment;

  template <class Tile>
  __device__ static a_fragment load_a(int lane, Tile tile, int row, int k0) {
    a_fragment f;
#pragma unroll
    for (int i = 0; i < 2; ++i) load_row(f.x[i], tile, row + lane / 4 + 8 * i, k0);
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    b_fragment f;
#pragma unroll
    for (int i = 0; i < 4; ++i) load_row(f.x[i], tile, n + 8 * (i / 2) + 2 * (lane % 4) + i % 2, k0);
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    b_fragment f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 const v = load_shared_2(tile.element_address(k0 + i, n + 8 * half + 2 * (lane % 4)));
        f.x[2 * half][i] = v.x;
        f.x[2 * half + 1][i] = v.y;
      }
    return f;
  }
  __device__ static fed feed(accumulator const* c) {
    fed f;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        f.x[half][i] = __shfl_sync(0xffffffffu, c->x[2 * half + i % 2], (lane_index() & ~3) | i / 2);
    return f;
  }
  __device__ static void multiply_add(accumulator* c, a_fragment const& a, b_fragment const& b) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int column = 0; column < 4; ++column)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& sum = c[column / 2].x[2 * half + column % 2];
          sum = fmaf(a.x[half][i], b.x[column][i], sum);
        }
  }
  template <int threads, class Tile>
  __device__ static void round_staged(Tile) {}

 private:
  template <class Tile>
  __device__ static void load_row(float (&x)[8], Tile tile, int row, int k0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float4 const v = load_shared_4(tile.address(row, k0 / 4 + half));
      x[4 * half] = v.x, x[4 * half + 1] = v.y, x[4 * half + 2] = v.z, x[4 * half + 3] = v.w;
    }
  }
};

}  // namespace lanewise::gpu
