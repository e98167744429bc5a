// Flash attention forward on the CPU (Dao 2023, algorithm 1).
//
// A unit of work is one query tile of one (batch, head): Q^T is laid out once, then every visible key tile gives
//   S^T = K Q^T,  m' = max(m, S^T),  P^T = 2^(S^T - m'),  l = l 2^(m - m') + sum P^T,  O^T = O^T 2^(m - m') + V^T P^T
// with one query a vector lane, and O = O^T / l, LSE = m + log l at the end. Units share nothing, so results do not
// depend on the number of threads.
#pragma once

#include "../softmax.hpp"
#include "tile.hpp"

namespace lanewise::cpu {

template <config C, tuning T, class F>
class forward_kernel {
  using E = element<C>;
  static constexpr tile size = forward_tile<T>();
  static constexpr int d = C.head_dim, bq = size.block_q, bk = size.block_k;

  /// One thread's tiles, in floats.
  struct room {
    float *queries;     ///< Q^T [d][bq]
    float *scores;      ///< S^T, then P^T [bk][bq]
    float *output;      ///< O^T [d][bq], unnormalised
    float *rows;        ///< Q on the way in, O on the way out [bq][padded(d)]
    float *keys, *values;  ///< staged K and V [bk][padded(d)]
    float *maximum, *sum, *correction;  ///< [bq]
    bool *live_keys, *live_queries;
  };
  static room layout(carve& c) {
    return {c.take<float>(d * bq),          c.take<float>(bk * bq),         c.take<float>(d * bq),
            c.take<float>(bq * padded(d)),  c.take<float>(bk * padded(d)),  c.take<float>(bk * padded(d)),
            c.take<float>(bq),              c.take<float>(bq),              c.take<float>(bq),
            c.take<bool>(bk),               c.take<bool>(bq)};
  }

 public:
  static std::size_t bytes(int threads) {
    carve c;
    for (int i = 0; i < threads; ++i) layout(c);
    return c.used();
  }

  forward_kernel(micro_kernels const& run, forward_args<C> const& a, F const& f)
      : run_(run), a_(a), f_(f), tiles_{std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), bq, bk},
        ratio_(a.k.size.heads > 0 ? a.q.size.heads / a.k.size.heads : 1) {}

  void operator()(thread_pool* pool, void* scratch) const {
    std::int64_t const q_tiles = tiles_.q_tiles();
    for_each_unit(pool, a_.q.size.batch * a_.q.size.heads * q_tiles, [&](int thread, std::int64_t unit) {
      carve c(static_cast<std::byte*>(scratch) + thread * bytes(1));
      // the last query tile first: under a causal mask it is the longest
      std::int64_t const i = q_tiles - 1 - unit % q_tiles, bh = unit / q_tiles;
      query_tile(std::int32_t(bh / a_.q.size.heads), std::int32_t(bh % a_.q.size.heads), std::int32_t(i), layout(c));
    });
  }

 private:
  void query_tile(std::int32_t b, std::int32_t h, std::int32_t i, room const& r) const {
    block const rows = tiles_.tile(b, h, i, 0);
    int const queries = rows.q_end - rows.q_begin;
    load_queries(rows, queries, r);
    bool first = true;
    for (std::int32_t j = 0; j < tiles_.k_tiles(); ++j) {
      block const tile = tiles_.tile(b, h, i, j);
      cover const c = cover_of(f_, tile);
      if (c == cover::empty) continue;
      key_tile(tile, c, padded(queries), first, r);
      first = false;
    }
    store(rows, queries, r);
  }

  void load_queries(block const& rows, int queries, room const& r) const {
    staged_rows const q = stage<E>(run_, a_.q, rows.batch, rows.q_begin, rows.head, queries, true, r.rows);
    run_.transpose({queries, d, q.data, q.stride, r.queries, bq, query_factor<F>(a_.scale)});
    for (int x = 0; x < bq; ++x) r.maximum[x] = -infinity, r.sum[x] = 0.f;
  }

  void key_tile(block const& tile, cover c, int columns, bool first, room const& r) const {
    int const keys = tile.k_end - tile.k_begin;
    std::int64_t const hk = tile.head / ratio_;
    staged_rows const k = stage<E>(run_, a_.k, tile.batch, tile.k_begin, hk, keys, true, r.keys);
    run_.multiply({keys, columns, d, k.data, k.stride, 1, r.queries, bq, r.scores, bq});
    apply_variant(f_, tile, c, r.scores, bq, nullptr, {r.live_keys, r.live_queries});
    run_.softmax({keys, columns, r.scores, bq, r.maximum, r.sum, r.correction});

    staged_rows v = stage<E>(run_, a_.v, tile.batch, tile.k_begin, hk, keys, true, r.values);
    if (has_mask<F> && c == cover::partial) v = without_dead(v, keys, d, r.live_keys, r.values);
    run_.multiply({d, columns, keys, v.data, 1, v.stride, r.scores, bq, r.output, bq,
                   first ? start::zero : start::scale_columns, r.correction});
  }

  void store(block const& rows, int queries, room const& r) const {
    run_.transpose({d, padded(queries), r.output, bq, r.rows, padded(d), 1.f});
    for (int x = 0; x < queries; ++x) {
      std::int64_t const q = rows.q_begin + x;
      float m = r.maximum[x], l = r.sum[x], factor = 1.f;
      bool const empty = l == 0.f;
      if constexpr (has_sink<F>) factor = softmax::add_sink(f_(row{rows.batch, rows.head, std::int32_t(q)}), m, l);
      factor *= softmax::inverse_of(l);
      E* const o = a_.o.row(rows.batch, q, rows.head);
      float const* const from = r.rows + x * padded(d);
      for (int c = 0; c < d; ++c) o[c] = from_float<E>(empty ? 0.f : from[c] * factor);
      if (a_.lse) *a_.lse.row(rows.batch, q, rows.head) = softmax::lse_of(m, l, C.empty_lse);
    }
  }

  micro_kernels const& run_;
  forward_args<C> const& a_;
  F const& f_;
  tiling tiles_;
  std::int64_t ratio_;
};

}  // namespace lanewise::cpu
