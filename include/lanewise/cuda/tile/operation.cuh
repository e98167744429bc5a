// One struct per precision: what a staged tile is, what an operand fragment is and how it is loaded from a tile, how an
// accumulator becomes one, and the multiply-add. Kernels and gemm.cuh know nothing else about a precision; a new one is
// a new struct here.
//
//   tile         rows of an operand in shared memory      transfer: how rows get there, converted to what the loads
//                                                         expect (copy.cuh)
//   a_fragment   16 rows of A for one step of K           load_a(lane, tile, row, k)
//   b_fragment   16 columns of B for one step of K        load_b_rows(lane, tile, n, k):    tile holds B^T, [n][k]
//                                                         load_b_columns(lane, tile, k, n): tile holds B,   [k][n]
//   fed          A from accumulators                      feed(c): c points to c_tiles neighbouring 16 x 8 tiles
//
// load_b_rows meets load_a, load_b_columns meets feed: only there may K be permuted. Where promotes_sums, sums over
// tiles are kept in f32 registers, since the tensor core's adder truncates, and feed_row gives the A of a whole tile.
#pragma once

#include "../../precision.hpp"
#include "../instruction/ldmatrix.cuh"
#include "../instruction/mma.cuh"
#include "../instruction/stmatrix.cuh"
#include "../lane_map.hpp"
#include "copy.cuh"
#include "shared_tile.cuh"
#include "split_tile.cuh"

namespace lanewise::gpu {

/// A 16 x 8 tile of C, four elements a lane, on the C map that all mma.sync shapes share.
struct accumulator {
  float x[4];
};
using c_map = lane_maps::m16n8k16;

template <int m, int n>
using accumulators = accumulator[m][n];

__device__ __forceinline__ int lane_index() { return int(threadIdx.x & 31); }

/// The same, hidden from the optimiser: what is computed from it is not kept in registers across a loop.
__device__ __forceinline__ int lane_index_anew() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

template <precision P>
struct operation;

/// What most operations have in common: tiles are used as they were copied, sums stay in the accumulators.
template <class E>
struct plain_operation {
  template <int rows, int width>
  using tile = shared_tile<E, rows, width>;
  template <int threads, int head_dim, class Tile, int rows = Tile::rows>
  using transfer = async_transfer<threads, head_dim, Tile>;
  template <int rows, int width>
  using streamed_tile = tile<rows, width>;
  static constexpr bool promotes_sums = false;
  static constexpr int stretch = 512;  ///< columns of P B in one stretch of code (gemm.cuh): all of them
  /// One element of an operand as a product sees it.
  __device__ static float as_operand(float x) { return x; }
  /// Completes C = A B^T.
  template <int m, int n, class A, class B>
  __device__ static void finish_rows(accumulators<m, n>&, int, A, int, B) {}
};

/// Operands that ldmatrix loads: a step of K is two chunks of 16 bytes, of 16-bit elements (k 16) or 32-bit ones (k 8).
template <class Map>
struct matrix_operands {
  using map = Map;
  static constexpr int k = map::k, c_tiles = map::c_tiles_per_a;
  struct a_fragment {
    std::uint32_t r[4];
  };
  struct b_fragment {
    std::uint32_t r[4];
  };

  template <class Tile>
  __device__ static a_fragment load_a(int lane, Tile tile, int row, int k0) {
    a_fragment f;
    ldmatrix(f.r, tile.address_from(lane & 15, lane >> 4, row, k0 / Tile::chunk));
    return f;
  }
  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    b_fragment f;
    ldmatrix(f.r, tile.address_from((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1, n, k0 / Tile::chunk));
    return f;
  }
};

/// bf16 and f16 on m16n8k16.
template <class E>
struct operation_16_bit : plain_operation<E>, matrix_operands<lane_maps::m16n8k16> {
  static constexpr int unroll = 16;  ///< steps of K in one stretch of code: all of them
  using fed = a_fragment;

  /// A from a tile that holds A^T, [k][row].
  template <class Tile>
  __device__ static a_fragment load_a_columns(int lane, Tile tile, int k0, int row) {
    a_fragment f;
    ldmatrix_transposed(f.r, tile.address_from((lane & 7) + ((lane >> 4) << 3), (lane >> 3) & 1, k0, row / 8));
    return f;
  }
  /// A fragment to 16 rows and columns of a tile, where load_a reads it; sm_90.
  template <class Tile>
  __device__ static void store_a(int lane, Tile tile, int row, int k0, a_fragment const& f) {
    stmatrix(tile.address_from(lane & 15, lane >> 4, row, k0 / Tile::chunk), f.r);
  }

  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    b_fragment f;
    ldmatrix_transposed(f.r, tile.address_from(lane & 15, lane >> 4, k0, n / 8));
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
};

template <>
struct operation<precision::bf16> : operation_16_bit<bf16> {};
template <>
struct operation<precision::f16> : operation_16_bit<f16> {};

/// Two limbs of each number, so that products of both with B follow one after the other.
template <class E>
struct fed_limbs {
  typename operation_16_bit<E>::fed high, low;

  __device__ static fed_limbs of(accumulator const* c) {
    fed_limbs f;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      split(E{}, f.high.r[i], f.low.r[i], c[i / 2].x[2 * (i % 2)], c[i / 2].x[2 * (i % 2) + 1]);
    return f;
  }
};

/// A from n accumulators of 16 rows, and what each of the lane's two rows of the product is to be multiplied by.
template <class Fed, int steps>
struct fed_row {
  Fed step[steps];
  float factor[2];
};

/// bf16 storage; P and dS in two bf16 limbs: 16 bits of mantissa where the inputs have 8. The small product goes first.
template <>
struct operation<precision::bf16_split> : operation_16_bit<bf16> {
  static constexpr bool promotes_sums = true;
  static constexpr int stretch = 32;
  using fed = fed_limbs<bf16>;

  template <int n, class Tile>
  __device__ static fed_row<fed, n / c_tiles> feed_row(int, accumulator const (&c)[n], Tile) {
    fed_row<fed, n / c_tiles> f;
#pragma unroll
    for (int s = 0; s < n / c_tiles; ++s) f.step[s] = fed::of(c + s * c_tiles);
    f.factor[0] = f.factor[1] = 1.f;
    return f;
  }
  __device__ static void multiply_add(accumulator* c, fed const& a, b_fragment const& b) {
    operation_16_bit::multiply_add(c, a.low, b);
    operation_16_bit::multiply_add(c, a.high, b);
  }
  using operation_16_bit::multiply_add;
};

/// f32 storage, every operand as two f16 limbs of its own scale, three products, the small ones first; what they keep
/// of an f32 number stands at split_tile. A row of P or dS is scaled like a row of a tile, after each of its elements
/// has taken over the scale of the row of B that it meets.
template <>
struct operation<precision::f32_split> {
  using one = operation_16_bit<f16>;
  static constexpr int k = one::k, c_tiles = one::c_tiles, unroll = 16, stretch = 32;
  static constexpr bool promotes_sums = true;
  template <int rows, int width>
  using tile = split_tile<rows, width>;
  template <int rows, int width>
  using streamed_tile = tile<rows, width>;
  template <int threads, int head_dim, class Tile, int rows = Tile::rows>
  using transfer = splitting_transfer<threads, head_dim, Tile, rows>;
  using fed = fed_limbs<f16>;
  struct a_fragment {
    one::a_fragment high, low;
  };
  struct b_fragment {
    one::b_fragment high, low;
  };

  __device__ static float as_operand(float x) { return x; }

  template <class Tile>
  __device__ static a_fragment load_a(int lane, Tile tile, int row, int k0) {
    return {one::load_a(lane, tile.high(), row, k0), one::load_a(lane, tile.low(), row, k0)};
  }
  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    return {one::load_b_rows(lane, tile.high(), n, k0), one::load_b_rows(lane, tile.low(), n, k0)};
  }
  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    return {one::load_b_columns(lane, tile.high(), k0, n), one::load_b_columns(lane, tile.low(), k0, n)};
  }
  template <int m, int n, class A, class B>
  __device__ static void finish_rows(accumulators<m, n>& c, int lane, A a, int row, B b) {
    float of_row[m][2];
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        of_row[i][half] = load_shared(a.factor_address(row + 16 * i + 8 * half + lane / 4));
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float2 const of_column = load_shared_2(b.factor_address(8 * j + 2 * (lane % 4)));
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) c[i][j].x[e] *= (e % 2 ? of_column.y : of_column.x) * of_row[i][e / 2];
    }
  }
  template <int n, class Tile>
  __device__ static fed_row<fed, n / c_tiles> feed_row(int lane, accumulator const (&c)[n], Tile b) {
    accumulator x[n];
    float largest[2] = {};
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float2 const of_k = load_shared_2(b.factor_address(8 * j + 2 * (lane % 4)));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        x[j].x[e] = c[j].x[e] * (e % 2 ? of_k.y : of_k.x);
        largest[e / 2] = fmaxf(largest[e / 2], fabsf(x[j].x[e]));
      }
    }
    fed_row<fed, n / c_tiles> f;
    float up[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      limb_scale const s = limb_scale_of(row_max(largest[half]));
      up[half] = s.up, f.factor[half] = s.down;
    }
#pragma unroll
    for (int s = 0; s < n / c_tiles; ++s) {
#pragma unroll
      for (int e = 0; e < 8; ++e) x[s * c_tiles + e / 4].x[e % 4] *= up[e % 4 / 2];
      f.step[s] = fed::of(x + s * c_tiles);
    }
    return f;
  }
  template <class A>
  __device__ static void multiply_add(accumulator* c, A const& a, b_fragment const& b) {
    one::multiply_add(c, a.low, b.high);
    one::multiply_add(c, a.high, b.low);
    one::multiply_add(c, a.high, b.high);
  }
};

/// Rows of f32 as they are stored.
template <int rows_, int width_>
struct unrounded_tile : shared_tile<float, rows_, width_> {
  static constexpr bool unrounded = true;
  __device__ unrounded_tile stage(int index) const { return {{this->base + std::uint32_t(index * this->bytes)}}; }
};
template <class Tile>
concept holds_unrounded = requires {
  Tile::unrounded;
};

/// f32 storage, products in tf32 on m16n8k8. Tiles that stay are rounded on their way to shared memory, streamed ones
/// as operands are read, so that cp.async brings them during the products before; accumulators are rounded as they are
/// fed.
template <>
struct operation<precision::tf32> : plain_operation<float>, matrix_operands<lane_maps::m16n8k8_tf32> {
  static constexpr int unroll = 32;
  using fed = a_fragment;
  template <int rows, int width>
  using streamed_tile = unrounded_tile<rows, width>;
  template <int threads, int head_dim, class Tile, int rows = Tile::rows>
  using transfer = std::conditional_t<holds_unrounded<Tile>, async_transfer<threads, head_dim, Tile>,
                                      rounding_transfer<threads, head_dim, Tile, rows>>;
  __device__ static float as_operand(float x) { return bit_cast<float>(round_to_tf32(x) & 0xffffe000u); }

  template <class Tile>
  __device__ static b_fragment load_b_rows(int lane, Tile tile, int n, int k0) {
    return rounded<Tile>(matrix_operands::load_b_rows(lane, tile, n, k0));
  }
  /// Rows in the map's permuted order; with the swizzle the 32 lanes read 32 different banks.
  template <class Tile>
  __device__ static b_fragment load_b_columns(int lane, Tile tile, int k0, int n) {
    b_fragment f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      lane_maps::element const at = map::b(lane, i % 2);
      f.r[i] = load_shared_word(
          tile.address_from(map::permuted_k(at.row), at.column / Tile::chunk, k0, (n + 8 * (i / 2)) / Tile::chunk) +
          at.column % Tile::chunk * 4);
    }
    return rounded<Tile>(f);
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

 private:
  template <class Tile>
  __device__ static b_fragment rounded(b_fragment f) {
    if constexpr (holds_unrounded<Tile>)
#pragma unroll
      for (int i = 0; i < 4; ++i) f.r[i] = round_to_tf32(bit_cast<float>(f.r[i]));
    return f;
  }
};

/// f32 in FFMA, the strict reference on the GPU: the C map of the tensor cores, whose lanes gather whole rows of A and
/// their own columns of B. An accumulator is fed by shuffles within the four lanes that share its rows.
template <>
struct operation<precision::f32> : plain_operation<float> {
  static constexpr int k = 8, c_tiles = 1, stretch = 64,
                       unroll = 2;  ///< with more, loads run ahead of 48 registers of operands and spill
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
        float2 const v = load_shared_2(tile.address_from(i, lane % 4 / 2, k0, n / 4 + 2 * half) + lane % 2 * 8);
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

/// Registers of a thread that hold rows on their way.
inline constexpr int transfer_registers = 64;

/// A tile that stays, slice by slice where the whole would not fit the registers.
template <class Op, int threads, int head_dim, class Tile, class E>
__device__ __forceinline__ void copy_tile(Tile to, E const* from, std::int64_t stride, int valid, bool aligned) {
  constexpr int all = Op::template transfer<threads, head_dim, Tile>::registers;
  constexpr int slices = all <= transfer_registers       ? 1
                         : all <= 2 * transfer_registers ? 2
                                                         : 4,
                rows = Tile::rows / slices;
  static_assert(Tile::rows % slices == 0 && all <= 4 * transfer_registers);
#pragma unroll 1
  for (int first = 0; first < Tile::rows; first += rows) {
    typename Op::template transfer<threads, head_dim, Tile, rows> part;
    part.start(to, from + first * stride, stride, valid - first, aligned);
    if constexpr (rows == Tile::rows) part.finish(to);
    else part.finish(to, first);
  }
}

}  // namespace lanewise::gpu
