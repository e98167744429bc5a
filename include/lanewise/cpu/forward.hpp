// Flash attention forward on the CPU (Dao 2023, algorithm 1).
//
// A unit of work is one query tile of one (batch, head): Q^T is laid out once, then every visible key tile gives
//   S^T = K Q^T,  m' = max(m, S^T),  P^T = 2^(S^T - m'),  l = l 2^(m - m') + sum P^T,  O^T = O^T 2^(m - m') + V^T P^T
// with one query a vector lane, and O = O^T / l, LSE = m + log l at the end. Units share nothing, so results do not
// depend on the number of threads.
#pragma once

#include "../softmax.hpp"
#include "operands.hpp"

namespace lanewise::cpu {

/// Operands is one of operands.hpp's forward classes.
template <config C, tuning T, class F, template <config, int, int> class Operands>
class forward_kernel {
  using E = element<C>;
  static constexpr tile size = forward_tile<T>();
  static constexpr int d = C.head_dim, bq = size.block_q, bk = size.block_k;

  /// One thread's tiles.
  struct room {
    Operands<C, bq, bk> operands;
    float* scores;                      ///< S^T, then P^T [bk][bq]
    float* output;                      ///< O^T [d][bq], unnormalised
    float* rows;                        ///< O on the way out [bq][padded(d)]
    float *maximum, *sum, *correction;  ///< [bq]
    bool *live_keys, *live_queries;
  };
  static room layout(micro_kernels const& run, carve& c) {
    return {Operands<C, bq, bk>::layout(run, c),
            c.take<float>(bk * bq),
            c.take<float>(d * bq),
            c.take<float>(bq * padded(d)),
            c.take<float>(bq),
            c.take<float>(bq),
            c.take<float>(bq),
            c.take<bool>(bk),
            c.take<bool>(bq)};
  }

 public:
  static std::size_t bytes(int threads) {
    carve c;
    for (int i = 0; i < threads; ++i) layout(portable_kernels, c);
    return c.used();
  }

  forward_kernel(micro_kernels const& run, forward_args<C> const& a, F const& f)
      : run_(run), a_(a), f_(f), tiles_{std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), bq, bk},
        ratio_(head_ratio(a.q.size, a.k.size)) {}

  void operator()(thread_pool* pool, void* scratch) const {
    std::int64_t const q_tiles = tiles_.q_tiles();
    std::size_t const room_bytes = bytes(1);
    for_each_unit(pool, a_.q.size.batch * a_.q.size.heads * q_tiles, [&](int thread, std::int64_t unit) {
      carve c(static_cast<std::byte*>(scratch) + thread * room_bytes);
      // the last query tile first: under a causal mask it is the longest
      std::int64_t const i = q_tiles - 1 - unit % q_tiles, bh = unit / q_tiles;
      room r = layout(run_, c);
      query_tile(
          tiles_.tile(std::int32_t(bh / a_.q.size.heads), std::int32_t(bh % a_.q.size.heads), std::int32_t(i), 0),
          std::int32_t(i), r);
    });
  }

 private:
  void query_tile(block const& rows, std::int32_t i, room& r) const {
    r.operands.load_queries(a_.q, rows, query_factor<F>(a_.scale));
    for (int x = 0; x < bq; ++x) r.maximum[x] = -infinity, r.sum[x] = 0.f;
    bool first = true;
    for (std::int32_t j = 0; j < tiles_.k_tiles(); ++j) {
      block const tile = tiles_.tile(rows.batch, rows.head, i, j);
      cover const c = cover_of(f_, tile);
      if (c == cover::empty) continue;
      if (tile.k_end < tiles_.k) {  // the next tile's rows arrive while this one is worked on
        int const next = std::int32_t(tiles_.k - tile.k_end) < bk ? tiles_.k - tile.k_end : bk;
        prefetch(a_.k, tile.batch, tile.k_end, tile.head / ratio_, next);
        prefetch(a_.v, tile.batch, tile.k_end, tile.head / ratio_, next);
      }
      key_tile(tile, c, first, r);
      first = false;
    }
    store(rows, rows.q_end - rows.q_begin, r);
  }

  void key_tile(block const& tile, cover c, bool first, room& r) const {
    int const keys = tile.k_end - tile.k_begin, columns = padded(tile.q_end - tile.q_begin);
    std::int64_t const kv_head = tile.head / ratio_;
    r.operands.scores(a_.k, tile, kv_head, columns, r.scores);
    apply_variant(f_, tile, c, r.scores, bq, nullptr, {r.live_keys, r.live_queries});
    run_.softmax({keys, columns, r.scores, bq, r.maximum, r.sum, r.correction});
    bool const* const live = has_mask<F> && c == cover::partial ? r.live_keys : nullptr;
    r.operands.add_values(a_.v, tile, kv_head, columns, r.scores, live, r.output,
                          first ? start::zero : start::scale_columns, r.correction);
  }

  void store(block const& rows, int queries, room const& r) const {
    run_.transpose(transposition<float>{d, padded(queries), r.output, bq, r.rows, padded(d)});
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
