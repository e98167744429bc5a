// Flash attention backward on the CPU (Dao 2023, algorithm 2), five matrix products a tile, bitwise reproducible.
//
// A unit of work is one key tile of one (batch, key/value head). It keeps dK and dV, walks the query tiles of every
// query head of the group, and for each computes
//   P^T = 2^(K Q^T - LSE),  dS^T = P^T * (V dO^T - delta),  dV += P^T dO,  dK += dS^T Q,  dQ += dS K.
// Only dQ is shared between units. Its additions are ordered: a unit adds to a query tile when the unit of the last
// earlier key tile that visits it is done with it. Units are handed out in ascending order and a unit waits only for
// lower ones, so the wait ends whatever the threads do; the order, hence every bit, is fixed by shape and config.
#pragma once

#include "../softmax.hpp"
#include "operands.hpp"

namespace lanewise::cpu {

/// Operands is one of operands.hpp's backward classes.
template <config C, tuning T, class F, template <config, int, int> class Operands>
class backward_kernel {
  using E = element<C>;
  using G = gradient<C>;
  static constexpr tile size = backward_tile<T>();
  static constexpr int d = C.head_dim, dp = padded(d), bq = size.block_q, bk = size.block_k;
  /// dQ is summed in the caller's d_q when that is f32 and a padded row is a row.
  static constexpr bool direct = sizeof(G) == sizeof(float) && dp == d;

 public:
  /// One thread's tiles.
  struct room {
    Operands<C, bq, bk> operands;
    float *d_k, *d_v;                ///< [bk][dp]
    float *scores, *d_scores, *raw;  ///< S^T -> P^T, dP^T -> dS^T, scores before the variant's [bk][bq]
    float *base, *delta;             ///< LSE in log2 units, delta [bq]
    bool *live_keys, *live_queries;
  };
  static room layout(micro_kernels const& run, carve& c) {
    return {Operands<C, bq, bk>::layout(run, c),
            c.take<float>(bk * dp),
            c.take<float>(bk * dp),
            c.take<float>(bk * bq),
            c.take<float>(bk * bq),
            has_score<F> ? c.take<float>(bk * bq) : nullptr,
            c.take<float>(bq),
            c.take<float>(bq),
            c.take<bool>(bk),
            c.take<bool>(bq)};
  }

  /// What all threads share, in the workspace.
  struct shared {
    float *base, *delta;  ///< [batch][query heads][q]
    std::int32_t* turn;   ///< [batch][query heads][q tiles]: 1 + the last key tile whose dQ is added
    float* d_q;           ///< [batch][query heads][q][dp] unless direct
    std::byte* rooms;
  };
  static shared layout(carve& c, extents q, bool want_q, int threads) {
    std::size_t const rows = std::size_t(q.batch) * q.heads * q.sequence;
    std::size_t const tiles = std::size_t(q.batch) * q.heads * ((q.sequence + bq - 1) / bq);
    shared s;
    s.base = c.take<float>(rows);
    s.delta = c.take<float>(rows);
    s.turn = want_q ? c.take<std::int32_t>(tiles) : nullptr;
    s.d_q = want_q && !direct ? c.take<float>(rows * dp) : nullptr;
    s.rooms = c.take<std::byte>(room_bytes() * threads);
    return s;
  }
  static std::size_t room_bytes() {
    carve c;
    layout(portable_kernels, c);
    return c.used();
  }
  static std::size_t bytes(extents q, bool want_q, int threads) {
    carve c;
    layout(c, q, want_q, threads);
    return c.used();
  }

  backward_kernel(micro_kernels const& run, backward_args<C> const& a, F const& f, int threads, void* scratch)
      : run_(run), a_(a), f_(f), tiles_{std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), bq, bk},
        ratio_(head_ratio(a.q.size, a.k.size)) {
    carve c(scratch);
    shared_ = layout(c, a.q.size, bool(a.d_q), threads);
  }

  void operator()(thread_pool* pool) const {
    extents const q = a_.q.size, k = a_.k.size;
    std::int64_t const q_tiles = tiles_.q_tiles(), k_tiles = tiles_.k_tiles();
    auto const each_query_tile = [&](auto const& work) {
      for_each_unit(pool, q.batch * q.heads * q_tiles, [&](int thread, std::int64_t u) {
        std::int64_t const bh = u / q_tiles;
        work(thread, tiles_.tile(std::int32_t(bh / q.heads), std::int32_t(bh % q.heads), std::int32_t(u % q_tiles), 0));
      });
    };
    each_query_tile([&](int thread, block const& rows) {
      prepare(rows);
      if constexpr (recomputes_delta<C>) {
        room r = room_of(thread);
        sum_delta(rows, r);
      }
    });
    for_each_unit(pool, k.batch * k.heads * k_tiles, [&](int thread, std::int64_t u) {
      std::int64_t const bh = u / k_tiles;
      room r = room_of(thread);
      key_tile(std::int32_t(bh / k.heads), std::int32_t(bh % k.heads), std::int32_t(u % k_tiles), r);
    });
    if (a_.d_q) each_query_tile([&](int, block const& rows) { finish_d_q(rows); });
  }

  room room_of(int thread) const {
    carve c(shared_.rooms + thread * room_bytes());
    return layout(run_, c);
  }
  tiling const& tiles() const { return tiles_; }
  float delta_of(std::int64_t b, std::int64_t h, std::int64_t q) const { return shared_.delta[row_of(b, h, q)]; }

  /// K and V of a key tile, for tile_gradients.
  void load_keys(block const& tile, room& r) const { r.operands.load_keys(a_.k, a_.v, tile, tile.head / ratio_); }

  /// P^T in r.scores and factor * dS^T in r.d_scores for one tile, dS being the gradient of the variant's result.
  void tile_gradients(block const& tile, cover c, float factor, room& r) const {
    int const keys = tile.k_end - tile.k_begin, queries = tile.q_end - tile.q_begin, columns = padded(queries);
    r.operands.load_queries(a_.q, a_.d_o, tile, query_factor<F>(a_.scale));
    for (int x = 0; x < columns; ++x) {
      bool const inside = x < queries;
      std::int64_t const at = inside ? row_of(tile.batch, tile.head, tile.q_begin + x) : 0;
      r.base[x] = inside ? shared_.base[at] : 0.f;
      r.delta[x] = inside ? shared_.delta[at] : 0.f;
    }
    r.operands.scores(r.scores);
    apply_variant(f_, tile, c, r.scores, bq, r.raw, {r.live_keys, r.live_queries});
    r.operands.d_p(r.d_scores);
    run_.differentiate({keys, columns, r.scores, r.d_scores, bq, r.base, r.delta, factor});
  }

 private:
  std::int64_t row_of(std::int64_t b, std::int64_t h, std::int64_t q) const {
    return (b * a_.q.size.heads + h) * a_.q.size.sequence + q;
  }

  void prepare(block const& rows) const {
    for (std::int64_t q = rows.q_begin; q < rows.q_end; ++q) {
      E const *o = a_.o.row(rows.batch, q, rows.head), *d_o = a_.d_o.row(rows.batch, q, rows.head);
      float sum[8] = {};  // eight chains, added in a fixed order
      // an element of O that is 0 adds 0 whatever dO holds: so a row without keys, whose O is 0, lets nothing through
      for (int c = 0; c < d; c += 8)
        for (int i = 0; i < 8; ++i) {
          float const x = to_float(o[c + i]);
          sum[i] += x == 0.f ? 0.f : x * to_float(d_o[c + i]);
        }
      float delta = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
      if (a_.d_lse) delta -= *a_.d_lse.row(rows.batch, q, rows.head);
      std::int64_t const at = row_of(rows.batch, rows.head, q);
      shared_.delta[at] = delta;
      shared_.base[at] = softmax::backward_base_of(*a_.lse.row(rows.batch, q, rows.head));
    }
    if (a_.d_q) *turn_of(rows) = 0;
  }

  /// delta = sum_j P_j (dO v_j) in place of rowsum(dO o).
  void sum_delta(block const& rows, room& r) const {
    std::int32_t const i = rows.q_begin / bq;
    double sum[bq] = {};
    for (std::int64_t q = rows.q_begin; q < rows.q_end; ++q) shared_.delta[row_of(rows.batch, rows.head, q)] = 0;
    for (std::int32_t j = -1; (j = next_key_tile(f_, tiles_, rows.batch, rows.head, i, j)) < tiles_.k_tiles();) {
      block const tile = tiles_.tile(rows.batch, rows.head, i, j);
      load_keys(tile, r);
      tile_gradients(tile, cover_of(f_, tile), 1.f, r);  // P dP, delta being 0
      for (int k = 0; k < tile.k_end - tile.k_begin; ++k)
        for (int q = 0; q < tile.q_end - tile.q_begin; ++q) sum[q] += r.d_scores[k * bq + q];
    }
    for (std::int64_t q = rows.q_begin; q < rows.q_end; ++q)
      shared_.delta[row_of(rows.batch, rows.head, q)] =
          float(sum[q - rows.q_begin]) - (a_.d_lse ? *a_.d_lse.row(rows.batch, q, rows.head) : 0.f);
  }

  void key_tile(std::int32_t b, std::int32_t kv_head, std::int32_t j, room& r) const {
    block const columns = tiles_.tile(b, std::int32_t(kv_head * ratio_), 0, j);
    load_keys(columns, r);
    bool first = true;
    for (std::int64_t g = 0; g < ratio_; ++g)
      for (std::int32_t i = 0; i < tiles_.q_tiles(); ++i) {
        block const tile = tiles_.tile(b, std::int32_t(kv_head * ratio_ + g), i, j);
        cover const c = cover_of(f_, tile);
        if (c == cover::empty) continue;
        query_tile(tile, c, i, j, first, r);
        first = false;
      }
    int const keys = columns.k_end - columns.k_begin;
    if (a_.d_k) store(a_.d_k, b, columns.k_begin, kv_head, keys, first ? nullptr : r.d_k);
    if (a_.d_v) store(a_.d_v, b, columns.k_begin, kv_head, keys, first ? nullptr : r.d_v);
  }

  void query_tile(block const& tile, cover c, std::int32_t i, std::int32_t j, bool first, room& r) const {
    tile_gradients(tile, c, has_score<F> ? 1.f : a_.scale, r);
    if constexpr (has_score<F>) through_score(tile, r);
    bool const masked = has_mask<F> && c == cover::partial;
    r.operands.finish_tile(r.scores, r.d_scores, masked ? r.live_keys : nullptr, masked ? r.live_queries : nullptr);
    start const from = first ? start::zero : start::add;
    if (a_.d_v) r.operands.add_d_v(r.d_v, from);
    if (a_.d_k) r.operands.add_d_k(r.d_k, from);
    if (!a_.d_q) return;
    std::int32_t const before = previous_key_tile(f_, tiles_, tile.batch, tile.head, i, j);
    await_turn(tile, before + 1);
    auto const [to, row] = d_q_rows(tile);
    r.operands.add_d_q(to, row, before >= 0 || (direct && a_.accumulate) ? start::add : start::zero);
    std::atomic_ref<std::int32_t>(*turn_of(tile)).store(j + 1, std::memory_order_release);
  }

  /// dS with respect to scale * q.k, times scale: the chain rule through the variant's score.
  void through_score(block const& tile, room const& r) const {
    int const keys = tile.k_end - tile.k_begin, queries = tile.q_end - tile.q_begin;
    for (int k = 0; k < keys; ++k)
      for (int q = 0; q < queries; ++q) {
        float& d_s = r.d_scores[k * bq + q];
        if (d_s != 0.f)
          d_s *=
              a_.scale * score_grad(f_, r.raw[k * bq + q], {tile.batch, tile.head, tile.q_begin + q, tile.k_begin + k});
      }
  }

  void await_turn(block const& tile, std::int32_t turn) const {
    std::atomic_ref<std::int32_t> const now(*turn_of(tile));
    for (int spins = 0; now.load(std::memory_order_acquire) != turn; ++spins)
      if (spins > 256) std::this_thread::yield();
  }

  std::int32_t* turn_of(block const& tile) const {
    return shared_.turn + (tile.batch * a_.q.size.heads + tile.head) * tiles_.q_tiles() + tile.q_begin / bq;
  }

  struct f32_rows {
    float* data;
    std::ptrdiff_t stride;
  };
  f32_rows d_q_rows(block const& rows) const {
    if constexpr (direct) return {a_.d_q.row(rows.batch, rows.q_begin, rows.head), a_.d_q.stride.sequence};
    else return {shared_.d_q + row_of(rows.batch, rows.head, rows.q_begin) * dp, dp};
  }

  void finish_d_q(block const& rows) const {
    std::int32_t const i = rows.q_begin / bq;
    bool const visited = previous_key_tile(f_, tiles_, rows.batch, rows.head, i, tiles_.k_tiles()) >= 0;
    if (direct && visited) return;
    store(a_.d_q, rows.batch, rows.q_begin, rows.head, rows.q_end - rows.q_begin,
          visited ? d_q_rows(rows).data : nullptr);
  }

  /// Writes or adds f32 rows of dp to a gradient; null rows are zeros.
  void store(view<G> const& to, std::int64_t b, std::int64_t s, std::int64_t h, int count, float const* from) const {
    for (int x = 0; x < count; ++x) {
      G* const out = to.row(b, s + x, h);
      for (int c = 0; c < d; ++c) {
        float const value = from ? from[std::ptrdiff_t(x) * dp + c] : 0.f;
        out[c] = from_float<G>(a_.accumulate ? to_float(out[c]) + value : value);
      }
    }
  }

  micro_kernels const& run_;
  backward_args<C> const& a_;
  F const& f_;
  tiling tiles_;
  std::int64_t ratio_;
  shared shared_;
};

}  // namespace lanewise::cpu
