// How the products of a tile are formed: from f32 copies of the rows, or from bf16 pairs (avx512_bf16). The forward and
// backward kernels are written on these operations; a storage format is one pair of classes here.
//
// S^T, P^T and dS^T are [keys][queries] with rows of bq; `live` flags, where given, say which rows of a partial tile
// take part: the others are replaced by zeros, so that what a masked row holds, NaN included, reaches no sum.
#pragma once

#include "tile.hpp"

namespace lanewise::cpu {

/// Rows of head_dim elements, in place or copied.
template <class E>
struct rows_of {
  E const* data;
  std::ptrdiff_t stride;
};

/// `count` rows of x from (b, s, h) on as floats: in place where x is f32 and `in_place` allows it, else copied to
/// `room` in rows of padded(head_dim).
template <class E>
rows_of<float> stage(micro_kernels const& run, view<E const> const& x, std::int64_t b, std::int64_t s, std::int64_t h,
                     int count, bool in_place, float* room) {
  int const d = int(x.size.head_dim);
  if constexpr (sizeof(E) == sizeof(float))
    if (in_place) return {x.row(b, s, h), x.stride.sequence};
  run.copy(copy_rows<E>{count, d, x.row(b, s, h), x.stride.sequence, room, padded(d)});
  return {room, padded(d)};
}

/// Asks for `count` rows early. Rows of [B, S, H, D] lie a page or half a page apart, where the processor foresees
/// nothing.
template <class E>
void prefetch(view<E const> const& x, std::int64_t b, std::int64_t s, std::int64_t h, int count) {
  for (int i = 0; i < count; ++i) {
    char const* const row = reinterpret_cast<char const*>(x.row(b, s + i, h));
    for (std::int64_t at = 0; at < x.size.head_dim * std::int64_t(sizeof(E)); at += 64)
      __builtin_prefetch(row + at, 0, 2);
  }
}

/// `rows` with those that are not live zeroed, copied to `room` unless every row is.
inline rows_of<float> without_dead(rows_of<float> rows, int count, int d, bool const* live, float* room) {
  int dead = 0;
  for (int i = 0; i < count; ++i) dead += !live[i];
  if (dead == 0) return rows;
  for (int i = 0; i < count; ++i) {
    float* const to = room + std::ptrdiff_t(i) * padded(d);
    float const* const from = rows.data + i * rows.stride;
    if (!live[i]) std::memset(to, 0, std::size_t(padded(d)) * sizeof(float));
    else if (to != from) std::memcpy(to, from, std::size_t(d) * sizeof(float));
    for (int c = d; c < padded(d); ++c) to[c] = 0.f;
  }
  return {room, padded(d)};
}

/// Rows of bf16 as words of two; copied to `room` (rows of d / 2) where a row is not aligned to a word.
inline rows_of<std::uint32_t> stage_words(view<bf16 const> const& x, std::int64_t b, std::int64_t s, std::int64_t h,
                                          int count, std::uint32_t* room) {
  bf16 const* const from = x.row(b, s, h);
  std::ptrdiff_t const words = x.size.head_dim / 2;
  if (reinterpret_cast<std::uintptr_t>(from) % 4 == 0 && x.stride.sequence % 2 == 0)
    return {reinterpret_cast<std::uint32_t const*>(from), x.stride.sequence / 2};
  for (int i = 0; i < count; ++i) std::memcpy(room + i * words, from + i * x.stride.sequence, std::size_t(words) * 4);
  return {room, words};
}

/// The forward's products from f32 rows.
template <config C, int bq, int bk>
class f32_forward_operands {
  using E = element<C>;
  static constexpr int d = C.head_dim, dp = padded(d);

 public:
  static f32_forward_operands layout(micro_kernels const& run, carve& c) {
    f32_forward_operands o(run);
    o.queries_t_ = c.take<float>(d * bq);
    o.queries_ = c.take<float>(bq * dp);
    o.keys_ = c.take<float>(bk * dp);
    o.values_ = c.take<float>(bk * dp);
    return o;
  }

  void load_queries(view<E const> const& q, block const& rows, float factor) {
    int const queries = rows.q_end - rows.q_begin;
    auto const x = stage<E>(run_, q, rows.batch, rows.q_begin, rows.head, queries, true, queries_);
    run_.transpose(transposition<float>{queries, d, x.data, x.stride, queries_t_, bq, factor});
  }
  /// s = factor * K Q^T, the factor of load_queries.
  void scores(view<E const> const& k, block const& tile, std::int64_t kv_head, int columns, float* s) {
    int const keys = tile.k_end - tile.k_begin;
    auto const x = stage<E>(run_, k, tile.batch, tile.k_begin, kv_head, keys, true, keys_);
    run_.multiply(product<float>{keys, columns, d, x.data, x.stride, 1, queries_t_, bq, s, bq});
  }
  /// o^T[d][bq] = start + V^T P^T.
  void add_values(view<E const> const& v, block const& tile, std::int64_t kv_head, int columns, float const* p,
                  bool const* live, float* o, start from, float const* correction) {
    int const keys = tile.k_end - tile.k_begin;
    auto x = stage<E>(run_, v, tile.batch, tile.k_begin, kv_head, keys, true, values_);
    if (live) x = without_dead(x, keys, d, live, values_);
    run_.multiply(product<float>{d, columns, keys, x.data, 1, x.stride, p, bq, o, bq, from, correction});
  }

 private:
  explicit f32_forward_operands(micro_kernels const& run) : run_(run) {}
  micro_kernels const& run_;
  float *queries_t_, *queries_, *keys_, *values_;
};

/// The forward's products from bf16 pairs: P is rounded to bf16, as a bf16 tensor core does.
template <config C, int bq, int bk>
class bf16_forward_operands {
  using E = bf16;
  static constexpr int d = C.head_dim, dp = padded(d);
  using word = std::uint32_t;

 public:
  static bf16_forward_operands layout(micro_kernels const& run, carve& c) {
    bf16_forward_operands o(run);
    o.queries_t_ = c.take<word>(d / 2 * bq);
    o.rows_ = c.take<word>((bq > bk ? bq : bk) * d / 2);
    o.values_ = c.take<word>((bk + 1) / 2 * dp);
    o.p_ = c.take<word>((bk + 1) / 2 * bq);
    return o;
  }

  void load_queries(view<E const> const& q, block const& rows, float factor) {
    int const queries = rows.q_end - rows.q_begin;
    auto const x = stage_words(q, rows.batch, rows.q_begin, rows.head, queries, rows_);
    run_.transpose(transposition<word>{queries, d / 2, x.data, x.stride, queries_t_, bq});
    factor_ = factor;
  }
  void scores(view<E const> const& k, block const& tile, std::int64_t kv_head, int columns, float* s) {
    int const keys = tile.k_end - tile.k_begin;
    auto const x = stage_words(k, tile.batch, tile.k_begin, kv_head, keys, rows_);
    run_.multiply(
        product<word>{keys, columns, d / 2, x.data, x.stride, 1, queries_t_, bq, s, bq, start::zero, nullptr, factor_});
  }
  void add_values(view<E const> const& v, block const& tile, std::int64_t kv_head, int columns, float const* p,
                  bool const* live, float* o, start from, float const* correction) {
    int const keys = tile.k_end - tile.k_begin;
    run_.interleave({keys, d, v.row(tile.batch, tile.k_begin, kv_head), v.stride.sequence, live, values_, dp});
    run_.round({keys, columns, p, bq, p_, bq, nullptr, 0});
    run_.multiply(product<word>{d, columns, (keys + 1) / 2, values_, 1, dp, p_, bq, o, bq, from, correction});
  }

 private:
  explicit bf16_forward_operands(micro_kernels const& run) : run_(run) {}
  micro_kernels const& run_;
  word *queries_t_, *rows_, *values_, *p_;
  float factor_ = 1.f;
};

/// The backward's products from f32 rows.
template <config C, int bq, int bk>
class f32_backward_operands {
  using E = element<C>;
  static constexpr int d = C.head_dim, dp = padded(d);

 public:
  static f32_backward_operands layout(micro_kernels const& run, carve& c) {
    f32_backward_operands o(run);
    for (float** x : {&o.keys_room_, &o.values_room_, &o.live_keys_room_}) *x = c.take<float>(bk * dp);
    for (float** x : {&o.queries_room_, &o.d_o_room_, &o.queries_t_, &o.d_o_t_}) *x = c.take<float>(bq * dp);
    return o;
  }

  void load_keys(view<E const> const& k, view<E const> const& v, block const& tile, std::int64_t kv_head) {
    keys_ = tile.k_end - tile.k_begin;
    k_ = stage<E>(run_, k, tile.batch, tile.k_begin, kv_head, keys_, dp == d, keys_room_);
    v_ = stage<E>(run_, v, tile.batch, tile.k_begin, kv_head, keys_, true, values_room_);
  }
  void load_queries(view<E const> const& q, view<E const> const& d_o, block const& tile, float factor) {
    queries_ = tile.q_end - tile.q_begin;
    q_ = stage<E>(run_, q, tile.batch, tile.q_begin, tile.head, queries_, dp == d, queries_room_);
    d_o_ = stage<E>(run_, d_o, tile.batch, tile.q_begin, tile.head, queries_, dp == d, d_o_room_);
    run_.transpose(transposition<float>{queries_, d, q_.data, q_.stride, queries_t_, bq, factor});
    run_.transpose(transposition<float>{queries_, d, d_o_.data, d_o_.stride, d_o_t_, bq});
  }
  /// s = factor K Q^T and d_p = V dO^T.
  void scores(float* s) const {
    run_.multiply(product<float>{keys_, padded(queries_), d, k_.data, k_.stride, 1, queries_t_, bq, s, bq});
  }
  void d_p(float* d_p) const {
    run_.multiply(product<float>{keys_, padded(queries_), d, v_.data, v_.stride, 1, d_o_t_, bq, d_p, bq});
  }

  /// P^T and dS^T are final: what the three sums below use. Null flags: every row takes part.
  void finish_tile(float const* p, float const* d_s, bool const* live_keys, bool const* live_queries) {
    p_ = p, d_s_ = d_s, live_k_ = k_;
    if (!live_keys) return;
    q_ = without_dead(q_, queries_, d, live_queries, queries_room_);
    d_o_ = without_dead(d_o_, queries_, d, live_queries, d_o_room_);
    live_k_ = without_dead(k_, keys_, d, live_keys, live_keys_room_);
  }
  void add_d_v(float* d_v, start from) const {
    run_.multiply(product<float>{keys_, dp, queries_, p_, bq, 1, d_o_.data, d_o_.stride, d_v, dp, from});
  }
  void add_d_k(float* d_k, start from) const {
    run_.multiply(product<float>{keys_, dp, queries_, d_s_, bq, 1, q_.data, q_.stride, d_k, dp, from});
  }
  void add_d_q(float* d_q, std::ptrdiff_t row, start from) const {
    run_.multiply(product<float>{queries_, dp, keys_, d_s_, 1, bq, live_k_.data, live_k_.stride, d_q, row, from});
  }

 private:
  explicit f32_backward_operands(micro_kernels const& run) : run_(run) {}
  micro_kernels const& run_;
  float *keys_room_, *values_room_, *live_keys_room_, *queries_room_, *d_o_room_, *queries_t_, *d_o_t_;
  int keys_ = 0, queries_ = 0;
  rows_of<float> k_{}, v_{}, q_{}, d_o_{}, live_k_{};
  float const *p_ = nullptr, *d_s_ = nullptr;
};

/// The backward's products from bf16 pairs: P and dS are rounded to bf16.
template <config C, int bq, int bk>
class bf16_backward_operands {
  using E = bf16;
  static constexpr int d = C.head_dim, dp = padded(d);
  using word = std::uint32_t;

 public:
  static bf16_backward_operands layout(micro_kernels const& run, carve& c) {
    bf16_backward_operands o(run);
    for (word** x : {&o.keys_room_, &o.values_room_}) *x = c.take<word>(bk * d / 2);
    for (word** x : {&o.rows_room_, &o.queries_t_, &o.d_o_t_}) *x = c.take<word>(bq * d / 2);
    for (word** x : {&o.key_pairs_, &o.live_key_pairs_}) *x = c.take<word>((bk + 1) / 2 * dp);
    for (word** x : {&o.query_pairs_, &o.d_o_pairs_}) *x = c.take<word>(bq / 2 * dp);
    for (word** x : {&o.p_words_, &o.d_s_words_}) *x = c.take<word>(bk * bq / 2);
    o.d_s_pairs_ = c.take<word>((bk + 1) / 2 * bq);
    return o;
  }

  void load_keys(view<E const> const& k, view<E const> const& v, block const& tile, std::int64_t kv_head) {
    keys_ = tile.k_end - tile.k_begin;
    k_ = stage_words(k, tile.batch, tile.k_begin, kv_head, keys_, keys_room_);
    v_ = stage_words(v, tile.batch, tile.k_begin, kv_head, keys_, values_room_);
    k_rows_ = {k.row(tile.batch, tile.k_begin, kv_head), k.stride.sequence};
    pair(k_rows_, keys_, nullptr, key_pairs_);
  }
  void load_queries(view<E const> const& q, view<E const> const& d_o, block const& tile, float factor) {
    queries_ = tile.q_end - tile.q_begin, factor_ = factor;
    transpose(q, tile, queries_t_);
    transpose(d_o, tile, d_o_t_);
    q_rows_ = {q.row(tile.batch, tile.q_begin, tile.head), q.stride.sequence};
    d_o_rows_ = {d_o.row(tile.batch, tile.q_begin, tile.head), d_o.stride.sequence};
  }
  void scores(float* s) const {
    run_.multiply(product<word>{keys_, padded(queries_), d / 2, k_.data, k_.stride, 1, queries_t_, bq, s, bq,
                                start::zero, nullptr, factor_});
  }
  void d_p(float* d_p) const {
    run_.multiply(product<word>{keys_, padded(queries_), d / 2, v_.data, v_.stride, 1, d_o_t_, bq, d_p, bq});
  }

  void finish_tile(float* p, float* d_s, bool const* live_keys, bool const* live_queries) {
    // an odd last query is paired with a column that no mask was applied to: what K holds may have made it NaN
    if (queries_ % 2 != 0)
      for (int k = 0; k < keys_; ++k) p[k * bq + queries_] = d_s[k * bq + queries_] = 0.f;
    pair(q_rows_, queries_, live_queries, query_pairs_);
    pair(d_o_rows_, queries_, live_queries, d_o_pairs_);
    if (live_keys) pair(k_rows_, keys_, live_keys, live_key_pairs_);
    live_k_ = live_keys ? live_key_pairs_ : key_pairs_;
    run_.round({keys_, padded(queries_), p, bq, nullptr, 0, p_words_, bq / 2});
    run_.round({keys_, padded(queries_), d_s, bq, d_s_pairs_, bq, d_s_words_, bq / 2});
  }
  void add_d_v(float* d_v, start from) const {
    run_.multiply(product<word>{keys_, dp, (queries_ + 1) / 2, p_words_, bq / 2, 1, d_o_pairs_, dp, d_v, dp, from});
  }
  void add_d_k(float* d_k, start from) const {
    run_.multiply(product<word>{keys_, dp, (queries_ + 1) / 2, d_s_words_, bq / 2, 1, query_pairs_, dp, d_k, dp, from});
  }
  void add_d_q(float* d_q, std::ptrdiff_t row, start from) const {
    run_.multiply(product<word>{queries_, dp, (keys_ + 1) / 2, d_s_pairs_, 1, bq, live_k_, dp, d_q, row, from});
  }

 private:
  explicit bf16_backward_operands(micro_kernels const& run) : run_(run) {}
  void pair(rows_of<bf16> const& rows, int count, bool const* live, word* to) const {
    run_.interleave({count, d, rows.data, rows.stride, live, to, dp});
  }
  void transpose(view<E const> const& x, block const& tile, word* to) const {
    auto const rows = stage_words(x, tile.batch, tile.q_begin, tile.head, queries_, rows_room_);
    run_.transpose(transposition<word>{queries_, d / 2, rows.data, rows.stride, to, bq});
  }

  micro_kernels const& run_;
  word *keys_room_, *values_room_, *rows_room_, *queries_t_, *d_o_t_, *key_pairs_, *live_key_pairs_, *query_pairs_,
      *d_o_pairs_;
  word *p_words_, *d_s_words_, *d_s_pairs_;
  int keys_ = 0, queries_ = 0;
  float factor_ = 1.f;
  rows_of<word> k_{}, v_{};
  rows_of<bf16> k_rows_{}, q_rows_{}, d_o_rows_{};
  word const* live_k_ = nullptr;
};

}  // namespace lanewise::cpu
