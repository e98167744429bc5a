// The inner loops of the CPU backend, written once on GNU vectors and compiled once per instruction set.
//
// Everything that takes time is one of five operations on f32 tiles in cache: a matrix product, the running softmax,
// the backward's dS, a transposing copy and a converting copy. The text below is generic over the number of lanes; each
// instruction set is a struct of register-block sizes and five entry points whose `target` attribute the always-inline
// text takes over. `kernels_for` picks a table at run time; the portable one is always there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../attention.hpp"
#include "../math.hpp"
#include "../precision.hpp"

namespace lanewise::cpu {

/// Scratch tiles have rows of a multiple of this many floats, so that every lane count up to it divides them.
inline constexpr int row_multiple = 16;
constexpr int padded(int n) { return (n + row_multiple - 1) / row_multiple * row_multiple; }

/// What a product does with C before it adds A B.
enum class start { zero, add, scale_columns };

/// C[m][n] = factor * (start + sum_k A(m, k) B[k][n]); A(m, k) = a[m * a_row + k * a_k], so that A may lie transposed.
/// n is a multiple of row_multiple; column_scale[n] multiplies C's columns under start::scale_columns. factor is not 1
/// under start::zero only.
///
/// E is float, or a word of two bf16 that follow each other along k, the first in the low half: a word of A times a
/// word of B then adds two products to an f32 (vdpbf16ps), and k counts words.
template <class E>
struct product {
  int m, n, k;
  E const* a;
  std::ptrdiff_t a_row, a_k;
  E const* b;
  std::ptrdiff_t b_row;
  float* c;
  std::ptrdiff_t c_row;
  start from = start::zero;
  float const* column_scale = nullptr;
  float factor = 1.f;
};

/// One key tile of the running softmax on S^T[keys][columns] (log2 units, a column is a query): S becomes P, maximum
/// and sum are carried on, correction[column] is what earlier sums and outputs are to be multiplied by.
struct softmax_step {
  int keys, columns;
  float* s;
  std::ptrdiff_t s_row;
  float *maximum, *sum, *correction;
};

/// P = 2^(S - base), dS = factor * P * (dP - delta) on S^T[keys][columns]; S becomes P, dP becomes dS. A pair with P =
/// 0 gets dS = 0 whatever dP holds: masked pairs stay out even where dP is not finite.
struct gradient_step {
  int keys, columns;
  float *s, *d_p;
  std::ptrdiff_t row;
  float const *base, *delta;
  float factor;
};

/// destination[row][column] = float(source[row][column]), rows x columns, the rest of a padded row zero.
template <class T>
struct copy_rows {
  int rows, columns;
  T const* source;
  std::ptrdiff_t source_row;
  float* destination;
  std::ptrdiff_t destination_row;
};

/// destination[column][row] = factor * source[row][column], words unchanged; padded with zeros to padded(rows).
template <class E>
struct transposition {
  int rows, columns;
  E const* source;
  std::ptrdiff_t source_row;
  E* destination;
  std::ptrdiff_t destination_row;
  float factor = 1.f;
};

/// f32 tiles rounded to nearest bf16, two ways: pairs[row / 2][column] holds rows 2i and 2i + 1 of a column in a word
/// (an odd last row is paired with zeros); words[row][column / 2] holds neighbouring columns. Either may be null.
struct rounding {
  int rows, columns;
  float const* source;
  std::ptrdiff_t source_row;
  std::uint32_t* pairs;
  std::ptrdiff_t pairs_row;
  std::uint32_t* words;
  std::ptrdiff_t words_row;
};

/// pairs[row / 2][column] = rows 2i and 2i + 1 of a bf16 tile in a word; rows that do not exist or are not `live`
/// (null: all are) are zeros, and so are columns up to padded(columns).
struct interleaving {
  int rows, columns;
  bf16 const* source;
  std::ptrdiff_t source_row;
  bool const* live;
  std::uint32_t* pairs;
  std::ptrdiff_t pairs_row;
};

/// The operations of one instruction set.
struct micro_kernels {
  char const *forward_name, *backward_name;  ///< what a status reports
  void (*multiply_f32)(product<float> const&);
  void (*softmax)(softmax_step const&);
  void (*differentiate)(gradient_step const&);
  void (*transpose_f32)(transposition<float> const&);
  void (*copy_bf16)(copy_rows<bf16> const&);
  void (*copy_f16)(copy_rows<f16> const&);
  void (*copy_f32)(copy_rows<float> const&);
  void (*multiply_words)(product<std::uint32_t> const&);  ///< null where the instruction set has no bf16 products
  void (*transpose_words)(transposition<std::uint32_t> const&);
  void (*round)(rounding const&);
  void (*interleave)(interleaving const&);

  void multiply(product<float> const& g) const { multiply_f32(g); }
  void multiply(product<std::uint32_t> const& g) const { multiply_words(g); }
  void transpose(transposition<float> const& g) const { transpose_f32(g); }
  void transpose(transposition<std::uint32_t> const& g) const { transpose_words(g); }

  void copy(copy_rows<bf16> const& c) const { copy_bf16(c); }
  void copy(copy_rows<f16> const& c) const { copy_f16(c); }
  void copy(copy_rows<float> const& c) const { copy_f32(c); }
};

/// Lanes of a vector, and the block of C kept in registers: rows x vectors accumulators.
struct portable {
  static constexpr int lanes = 4, rows = 4, vectors = 2;  // 8 accumulators of 16 SSE or NEON registers
};
struct avx2 {
  static constexpr int lanes = 8, rows = 6, vectors = 2;  // 12 accumulators of 16
};
struct avx512 {
  static constexpr int lanes = 16, rows = 6, vectors = 4;  // 24 accumulators of 32
};

namespace text {

template <int Lanes>
struct of {
  typedef float floats __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  typedef std::int32_t ints __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  typedef std::uint32_t words __attribute__((vector_size(Lanes * 4), aligned(4), may_alias));
  typedef std::uint16_t halves __attribute__((vector_size(Lanes * 2), aligned(2), may_alias));
};

/// 2^x: x = n + f, n the nearest integer, |f| <= 1/2; 2^f by the degree-5 minimax polynomial (relative error 7.5e-8), n
/// added to the exponent bits. Below 2^-126 the result is 0, from 2^127.5 on infinity; NaN stays NaN.
template <int Lanes>
[[gnu::always_inline]] inline void exp2(typename of<Lanes>::floats& x) {
  using V = typename of<Lanes>::floats;
  using I = typename of<Lanes>::ints;
  V const top = V{} + 128.f, bottom = V{} - 126.f, shift = V{} + 0x1.8p23f;
  V const clamped = x > top ? top : x;
  V const shifted = clamped + shift;
  V const f = clamped - (shifted - shift);
  V p = f * 0x1.5c08e6p-10f + 0x1.3d0c52p-7f;
  p = p * f + 0x1.c6b6e4p-5f;
  p = p * f + 0x1.ebf918p-3f;
  p = p * f + 0x1.62e428p-1f;
  p = p * f + 1.f;
  I const exponent = (__builtin_bit_cast(I, shifted) - std::int32_t(0x4b400000 - 127)) << 23;
  p *= __builtin_bit_cast(V, exponent);
  x = x < bottom ? V{} : p;
}

/// One step of a product: f32 elements, or words of two bf16.
template <class Isa>
[[gnu::always_inline]] inline void multiply_add(typename of<Isa::lanes>::floats& sum, float left,
                                                typename of<Isa::lanes>::floats const& right) {
  using V = typename of<Isa::lanes>::floats;
  sum += (left - V{}) * right;
}
#if defined(__x86_64__) && !defined(__clang__)  // clang refuses the operands where the text has no target of its own
template <class Isa>
[[gnu::always_inline]] inline void multiply_add(of<16>::floats& sum, std::uint32_t left, of<16>::floats const& right) {
  // the instruction itself: its builtin may not be named in text that other instruction sets compile too
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(of<16>::words{} + left), "v"(right));
}
#endif

template <class Isa, int Rows, int Vectors, class Product>
[[gnu::always_inline]] inline void multiply_block(Product const& g, int row, int column) {
  using V = typename of<Isa::lanes>::floats;
  using E = std::remove_cvref_t<decltype(*g.a)>;
  V acc[Rows][Vectors];
  float* const c = g.c + row * g.c_row + column;
  auto const at = [&](int i, int j) __attribute__((always_inline))->V* {
    return reinterpret_cast<V*>(c + i * g.c_row + j * Isa::lanes);
  };
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) {
      if (g.from == start::zero) acc[i][j] = V{};
      else if (g.from == start::add) acc[i][j] = *at(i, j);
      else acc[i][j] = *at(i, j) * *reinterpret_cast<V const*>(g.column_scale + column + j * Isa::lanes);
    }
  E const* a = g.a + row * g.a_row;
  E const* b = g.b + column;
  for (int k = 0; k < g.k; ++k, a += g.a_k, b += g.b_row) {
    V right[Vectors];
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) right[j] = *reinterpret_cast<V const*>(b + j * Isa::lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      E const left = a[i * g.a_row];
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) multiply_add<Isa>(acc[i][j], left, right[j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) *at(i, j) = acc[i][j] * g.factor;
}

template <class Isa, int Vectors, class Product>
[[gnu::always_inline]] inline void multiply_columns(Product const& g, int column) {
  // Rows are dealt out evenly (128 = 20 x 6 + 2 x 4): a last block of one or two rows would wait on its own FMA
  // latency.
  int row = 0;
  for (int left = g.m, blocks = (g.m + Isa::rows - 1) / Isa::rows; left > 0; --blocks) {
    int const rows = (left + blocks - 1) / blocks;
    switch (rows) {
      case 1: multiply_block<Isa, 1, Vectors>(g, row, column); break;
      case 2: multiply_block<Isa, 2, Vectors>(g, row, column); break;
      case 3: multiply_block<Isa, 3, Vectors>(g, row, column); break;
      case 4: multiply_block<Isa, 4, Vectors>(g, row, column); break;
      case 5:
        if constexpr (Isa::rows >= 5) multiply_block<Isa, 5, Vectors>(g, row, column);
        break;
      default:
        if constexpr (Isa::rows >= 6) multiply_block<Isa, 6, Vectors>(g, row, column);
        break;
    }
    row += rows;
    left -= rows;
  }
}

template <class Isa, class Product>
[[gnu::always_inline]] inline void multiply(Product const& g) {
  constexpr int wide = Isa::lanes * Isa::vectors;
  int column = 0;
  for (; column + wide <= g.n; column += wide) multiply_columns<Isa, Isa::vectors>(g, column);
  if constexpr (Isa::vectors == 4) {
    switch ((g.n - column) / Isa::lanes) {
      case 1: multiply_columns<Isa, 1>(g, column); break;
      case 2: multiply_columns<Isa, 2>(g, column); break;
      case 3: multiply_columns<Isa, 3>(g, column); break;
      default: break;
    }
  }
}

template <class Isa>
[[gnu::always_inline]] inline void softmax(softmax_step const& g) {
  using V = typename of<Isa::lanes>::floats;
  V const none = V{} - infinity;
  for (int column = 0; column < g.columns; column += Isa::lanes) {
    auto const at = [&](int key) __attribute__((always_inline))->V* {
      return reinterpret_cast<V*>(g.s + key * g.s_row + column);
    };
    V& maximum = *reinterpret_cast<V*>(g.maximum + column);
    V& sum = *reinterpret_cast<V*>(g.sum + column);
    V largest[4] = {maximum, none, none, none};  // four chains hide the latency of the maximum
    int key = 0;
    for (; key + 4 <= g.keys; key += 4)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        V const s = *at(key + i);
        largest[i] = s > largest[i] ? s : largest[i];
      }
    for (; key < g.keys; ++key) largest[0] = *at(key) > largest[0] ? *at(key) : largest[0];
#pragma GCC unroll 4
    for (int i = 1; i < 4; ++i) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    V const base = largest[0] == none ? V{} : largest[0];  // softmax::base_of
    V correction = maximum - base;
    exp2<Isa::lanes>(correction);
    V added[2] = {V{}, V{}};
    for (key = 0; key + 2 <= g.keys; key += 2)
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        V p = *at(key + i) - base;
        exp2<Isa::lanes>(p);
        *at(key + i) = p;
        added[i] += p;
      }
    if (key < g.keys) {
      V p = *at(key) - base;
      exp2<Isa::lanes>(p);
      *at(key) = p;
      added[0] += p;
    }
    maximum = largest[0];
    sum = sum * correction + (added[0] + added[1]);
    *reinterpret_cast<V*>(g.correction + column) = correction;
  }
}

template <class Isa>
[[gnu::always_inline]] inline void differentiate(gradient_step const& g) {
  using V = typename of<Isa::lanes>::floats;
  for (int column = 0; column < g.columns; column += Isa::lanes) {
    V const base = *reinterpret_cast<V const*>(g.base + column);
    V const delta = *reinterpret_cast<V const*>(g.delta + column);
    for (int key = 0; key < g.keys; ++key) {
      V& s = *reinterpret_cast<V*>(g.s + key * g.row + column);
      V& d_p = *reinterpret_cast<V*>(g.d_p + key * g.row + column);
      V p = s - base;
      exp2<Isa::lanes>(p);
      s = p;
      V const d_s = p * g.factor * (d_p - delta);
      d_p = p == V{} ? V{} : d_s;
    }
  }
}

/// 4 x 4 blocks through registers; 128-bit vectors on every instruction set.
template <class E>
[[gnu::always_inline]] inline void transpose(transposition<E> const& g) {
  typedef E V __attribute__((vector_size(16)));
  auto const row = [&](int r, int c) __attribute__((always_inline)) {
    V x{};
    if (r < g.rows) __builtin_memcpy(&x, g.source + r * g.source_row + c, sizeof(x));
    if constexpr (std::is_same_v<E, float>) x *= g.factor;
    return x;
  };
  int const rows = padded(g.rows);
  for (int r = 0; r < rows; r += 4) {
    for (int c = 0; c < g.columns; c += 4) {  // columns is a head dim, or half of one: a multiple of 4
      V const in[4] = {row(r, c), row(r + 1, c), row(r + 2, c), row(r + 3, c)};
      V const a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5),
              b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      V const d = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7),
              e = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      V const out[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                        __builtin_shufflevector(d, e, 0, 1, 4, 5), __builtin_shufflevector(d, e, 2, 3, 6, 7)};
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) __builtin_memcpy(g.destination + (c + i) * g.destination_row + r, &out[i], sizeof(V));
    }
  }
}

/// Round to nearest, ties to even, in the upper half of each word; NaN stays NaN.
template <class Isa>
[[gnu::always_inline]] inline void round_to_bf16(typename of<Isa::lanes>::words& u) {
  using W = typename of<Isa::lanes>::words;
  W const rounded = u + 0x7fff + ((u >> 16) & 1);
  u = (u & 0x7fffffff) > 0x7f800000 ? u | 0x400000 : rounded;
}

template <class Isa>
[[gnu::always_inline]] inline void round(rounding const& g) {
  using W = typename of<Isa::lanes>::words;
  using H = typename of<Isa::lanes>::halves;
  for (int r = 0; r < g.rows; r += 2)
    for (int c = 0; c < g.columns; c += Isa::lanes) {
      W low = *reinterpret_cast<W const*>(g.source + r * g.source_row + c), high{};
      if (r + 1 < g.rows) high = *reinterpret_cast<W const*>(g.source + (r + 1) * g.source_row + c);
      round_to_bf16<Isa>(low);
      round_to_bf16<Isa>(high);
      if (g.pairs) *reinterpret_cast<W*>(g.pairs + r / 2 * g.pairs_row + c) = low >> 16 | (high & 0xffff0000);
      if (g.words) {
        *reinterpret_cast<H*>(g.words + r * g.words_row + c / 2) = __builtin_convertvector(low >> 16, H);
        if (r + 1 < g.rows)
          *reinterpret_cast<H*>(g.words + (r + 1) * g.words_row + c / 2) = __builtin_convertvector(high >> 16, H);
      }
    }
}

[[gnu::always_inline]] inline void interleave(interleaving const& g) {
  using W = of<8>::words;
  using H = of<8>::halves;
  auto const row = [&](int r, int c) __attribute__((always_inline)) {
    H x{};
    if (r < g.rows && (!g.live || g.live[r])) __builtin_memcpy(&x, g.source + r * g.source_row + c, sizeof(x));
    return x;
  };
  for (int r = 0; r < g.rows; r += 2) {
    std::uint32_t* const to = g.pairs + r / 2 * g.pairs_row;
    int c = 0;
    for (; c < g.columns; c += 8) {
      W const pair = __builtin_convertvector(row(r, c), W) | __builtin_convertvector(row(r + 1, c), W) << 16;
      __builtin_memcpy(to + c, &pair, sizeof(pair));
    }
    for (; c < padded(g.columns); ++c) to[c] = 0;
  }
}

/// Eight elements at a time: a head dim is a multiple of 8.
template <class Isa, class T>
[[gnu::always_inline]] inline void copy(copy_rows<T> const& g) {
  using V = of<8>::floats;
  using I = of<8>::ints;
  for (int row = 0; row < g.rows; ++row) {
    T const* const from = g.source + row * g.source_row;
    float* const to = g.destination + row * g.destination_row;
    int c = 0;
    for (; c < g.columns; c += 8) {
      V& out = *reinterpret_cast<V*>(to + c);
      if constexpr (sizeof(T) == 4) {
        out = *reinterpret_cast<V const*>(from + c);
      } else {
        I const bits = __builtin_convertvector(*reinterpret_cast<of<8>::halves const*>(from + c), I);
        if constexpr (std::is_same_v<T, bf16>) {
          out = __builtin_bit_cast(V, bits << 16);
        } else {
          // exponent and mantissa moved to f32's place, then rescaled by 2^112: right for subnormals too
          V const magnitude = __builtin_bit_cast(V, (bits & 0x7fff) << 13) * 0x1p112f;
          I const special = (bits & 0x7c00) == 0x7c00 ? I{} + 0x7f800000 : I{};
          out = __builtin_bit_cast(V, __builtin_bit_cast(I, magnitude) | special | ((bits & 0x8000) << 16));
        }
      }
    }
    for (; c < padded(g.columns); ++c) to[c] = 0.f;
  }
}

}  // namespace text

// The entry points of one instruction set; a list, because an attribute cannot depend on a template parameter.

inline void multiply_portable(product<float> const& g) { text::multiply<portable>(g); }
inline void softmax_portable(softmax_step const& g) { text::softmax<portable>(g); }
inline void differentiate_portable(gradient_step const& g) { text::differentiate<portable>(g); }
inline void transpose_portable(transposition<float> const& g) { text::transpose(g); }
inline void copy_portable(copy_rows<bf16> const& g) { text::copy<portable>(g); }
inline void copy_portable(copy_rows<f16> const& g) { text::copy<portable>(g); }
inline void copy_portable(copy_rows<float> const& g) { text::copy<portable>(g); }

inline constexpr micro_kernels portable_kernels{"cpu forward, portable",
                                                "cpu backward, portable",
                                                multiply_portable,
                                                softmax_portable,
                                                differentiate_portable,
                                                transpose_portable,
                                                copy_portable,
                                                copy_portable,
                                                copy_portable,
                                                nullptr,
                                                nullptr,
                                                nullptr,
                                                nullptr};

#if defined(__x86_64__)

[[gnu::target("avx2,fma")]] inline void multiply_avx2(product<float> const& g) { text::multiply<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void softmax_avx2(softmax_step const& g) { text::softmax<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void differentiate_avx2(gradient_step const& g) { text::differentiate<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void transpose_avx2(transposition<float> const& g) { text::transpose(g); }
[[gnu::target("avx2,fma")]] inline void transpose_avx2(transposition<std::uint32_t> const& g) { text::transpose(g); }
[[gnu::target("avx2,fma")]] inline void copy_avx2(copy_rows<bf16> const& g) { text::copy<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void copy_avx2(copy_rows<f16> const& g) { text::copy<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void copy_avx2(copy_rows<float> const& g) { text::copy<avx2>(g); }
[[gnu::target("avx2,fma")]] inline void interleave_avx2(interleaving const& g) { text::interleave(g); }

inline constexpr micro_kernels avx2_kernels{"cpu forward, avx2",
                                            "cpu backward, avx2",
                                            multiply_avx2,
                                            softmax_avx2,
                                            differentiate_avx2,
                                            transpose_avx2,
                                            copy_avx2,
                                            copy_avx2,
                                            copy_avx2,
                                            nullptr,
                                            nullptr,
                                            nullptr,
                                            nullptr};

[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]] inline void multiply_avx512(product<float> const& g) {
  text::multiply<avx512>(g);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]] inline void softmax_avx512(softmax_step const& g) {
  text::softmax<avx512>(g);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]] inline void differentiate_avx512(
    gradient_step const& g) {
  text::differentiate<avx512>(g);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]] inline void round_avx512(rounding const& g) {
  text::round<avx512>(g);
}

inline constexpr micro_kernels avx512_kernels{"cpu forward, avx512",
                                              "cpu backward, avx512",
                                              multiply_avx512,
                                              softmax_avx512,
                                              differentiate_avx512,
                                              transpose_avx2,
                                              copy_avx2,
                                              copy_avx2,
                                              copy_avx2,
                                              nullptr,
                                              nullptr,
                                              nullptr,
                                              nullptr};

  #if !defined(__clang__)
[[gnu::target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]] inline void multiply_avx512(
    product<std::uint32_t> const& g) {
  text::multiply<avx512>(g);
}

/// For precision::bf16: products of bf16 pairs. Everything else is avx512's.
inline constexpr micro_kernels avx512_bf16_kernels{"cpu forward, avx512_bf16",
                                                   "cpu backward, avx512_bf16",
                                                   multiply_avx512,
                                                   softmax_avx512,
                                                   differentiate_avx512,
                                                   transpose_avx2,
                                                   copy_avx2,
                                                   copy_avx2,
                                                   copy_avx2,
                                                   multiply_avx512,
                                                   transpose_avx2,
                                                   round_avx512,
                                                   interleave_avx2};
  #endif

#endif

/// What this processor can run.
inline bool supports(cpu_isa isa) {
#if defined(__x86_64__)
  if (isa == cpu_isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == cpu_isa::avx512)
    return supports(cpu_isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
#endif
  return isa == cpu_isa::automatic || isa == cpu_isa::portable;
}

/// The table of an instruction set, the widest supported one for `automatic`; null when the processor lacks it.
inline micro_kernels const* kernels_for(cpu_isa isa) {
#if defined(__x86_64__)
  if (isa == cpu_isa::automatic)
    isa = supports(cpu_isa::avx512) ? cpu_isa::avx512 : supports(cpu_isa::avx2) ? cpu_isa::avx2 : cpu_isa::portable;
  if (!supports(isa)) return nullptr;
  if (isa == cpu_isa::avx512) return &avx512_kernels;
  if (isa == cpu_isa::avx2) return &avx2_kernels;
#endif
  return supports(isa) ? &portable_kernels : nullptr;
}

/// The table with bf16 products that goes with `isa`; null where there is none (they need avx512_bf16 and g++).
inline micro_kernels const* bf16_kernels_for([[maybe_unused]] cpu_isa isa) {
#if defined(__x86_64__) && !defined(__clang__)
  bool const wanted = isa == cpu_isa::automatic || isa == cpu_isa::avx512;
  if (wanted && supports(cpu_isa::avx512) && __builtin_cpu_supports("avx512bf16")) return &avx512_bf16_kernels;
#endif
  return nullptr;
}

}  // namespace lanewise::cpu
