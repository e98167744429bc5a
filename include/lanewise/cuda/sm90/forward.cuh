// Flash attention forward on wgmma and TMA (Shah et al. 2024, algorithms 1 and 2), sm_90a.
//
// A block stays on its multiprocessor and walks the query tiles that the schedule gives it. One warp copies: it says
// which key tile comes next and starts its transfer. Two or three warpgroups compute, 64 query rows each:
//   S = Q K^T,  m' = max(m, S),  P = 2^(S - m'),  l = l 2^(m - m') + rowsum(P),  O = O 2^(m - m') + P V
// The key tiles of all query tiles form one stream. In step n a warpgroup issues S of tile n + 1 and O += P V of tile
// n, and takes the softmax of n + 1 while the second product runs, across the border of query tiles too, so that the
// matrix units find work while a finished tile is scaled and stored.
#pragma once

#include "../instruction/mbarrier.cuh"
#include "../instruction/tma.cuh"
#include "../instruction/warpgroup.cuh"
#include "../instruction/wgmma.cuh"
#include "../launch.cuh"
#include "../tensor_map.hpp"
#include "../tile/store.cuh"
#include "../tile/swizzled_tile.cuh"
#include "../tile/wgmma_softmax.cuh"
#include "schedule.cuh"
#include "tiles.hpp"

namespace lanewise::sm90 {

/// One step of the stream as the copying warp announces it.
struct stream_step {
  std::int32_t word, i, head, batch;  ///< key tile and flags; query tile; query head
  static constexpr std::int32_t end = 1 << 30, masked = 1 << 29, first = 1 << 28, last = 1 << 27, tile = last - 1;
  __device__ std::int32_t j() const { return word & tile; }
  __device__ bool is(std::int32_t flag) const { return (word & flag) != 0; }
};

template <config C, tuning T, class F>
class forward_kernel {
  using E = element<C>;
  static constexpr forward_shape size = forward_tile<C, T, F>();
  static constexpr int d = C.head_dim, width = width_of<C>, n = size.columns / 8, on = width / 8;
  using query_tile = gpu::swizzled_tile<E, size.rows, d>;
  using key_tile = gpu::swizzled_tile<E, size.columns, d>;
  using scores = gpu::accumulators<1, n>;
  using output = gpu::accumulators<1, on>;
  using probabilities = std::uint32_t[n / 2][4];
  using query_ring = gpu::ring<size.query_buffers>;
  using key_ring = gpu::ring<size.stages>;
  using step_ring = gpu::ring<2 * size.stages>;

 public:
  static constexpr char const* name = "sm90 forward, wgmma";
  static constexpr int threads = size.threads();
  static constexpr int shared_bytes =
      fits<size.query_buffers * query_tile::bytes + 2 * size.stages * key_tile::bytes>();

  struct problem {
    CUtensorMap q, k, v;
    view<E> o;
    view<float> lse;
    F f;
    gpu::score_scale scale;
    tiling tiles;
    tile_order order;
    std::int32_t query_heads, ratio;
  };
  /// Everything but the maps.
  static problem problem_of(forward_args<C> const& a, F const& f) {
    tiling const tiles{std::int32_t(a.q.size.sequence), std::int32_t(a.k.size.sequence), size.rows, size.columns};
    std::int32_t const ratio = head_ratio(a.q.size, a.k.size);
    std::int64_t const bytes_of_key_head = 2 * a.k.size.sequence * d * std::int64_t(sizeof(E));
    return {{},
            {},
            {},
            a.o,
            a.lse,
            f,
            gpu::score_scale_of<F>(a.scale),
            tiles,
            tile_order_of(tiles, a.q.size, ratio, bytes_of_key_head),
            std::int32_t(a.q.size.heads),
            ratio};
  }
  /// False where the copy engine cannot walk a view, or O is not stored 16 bytes at a time.
  static bool encode_maps(problem& p, forward_args<C> const& a) {
    if (p.order.count() == 0) return true;
    bool const keys =
        p.tiles.k == 0 || (gpu::encode_tensor_map<key_tile>(p.k, a.k) && gpu::encode_tensor_map<key_tile>(p.v, a.v));
    return keys && gpu::encode_tensor_map<query_tile>(p.q, a.q) && gpu::aligned_to_16(a.o);
  }

  /// Barriers of the buffers, and the last steps announced. The step of a K buffer is still asked for while the next
  /// buffer is in use, when a tile is finished: two rounds of the ring are kept.
  struct signals {
    std::uint64_t full_q[size.query_buffers], empty_q[size.query_buffers];
    std::uint64_t full_k[size.stages], empty_k[size.stages], full_v[size.stages], empty_v[size.stages];
    alignas(16) stream_step step[2 * size.stages];
  };

  __device__ forward_kernel(problem const& p, std::uint32_t shared, signals& s)
      : p_(p),
        s_(s), q_{shared}, k_{shared + size.query_buffers * query_tile::bytes}, v_{k_.base +
                                                                                   size.stages * key_tile::bytes} {}

  __device__ void run() {
    if (threadIdx.x == 0) prepare();
    __syncthreads();
    int const warp = __shfl_sync(0xffffffffu, int(threadIdx.x / 32), 0);
    if (warp < 4) {
      gpu::lower_registers<size.producer_registers>();
      if (warp == 0) produce();
      if (warp == 1) write_empty_tiles();
    } else {
      gpu::raise_registers<size.consumer_registers()>();
      consume(warp / 4 - 1);
    }
  }

 private:
  static __device__ std::uint32_t at(std::uint64_t& barrier) { return gpu::shared_address(&barrier); }

  __device__ void prepare() {
    if (p_.tiles.k > 0) gpu::tma_prefetch_map(p_.q), gpu::tma_prefetch_map(p_.k), gpu::tma_prefetch_map(p_.v);
    constexpr int consumer_warps = 4 * size.consumers();
    for (int i = 0; i < size.query_buffers; ++i)
      gpu::mbarrier_init(at(s_.full_q[i]), 1), gpu::mbarrier_init(at(s_.empty_q[i]), consumer_warps);
    for (int i = 0; i < size.stages; ++i) {
      gpu::mbarrier_init(at(s_.full_k[i]), 1), gpu::mbarrier_init(at(s_.empty_k[i]), consumer_warps);
      gpu::mbarrier_init(at(s_.full_v[i]), 1), gpu::mbarrier_init(at(s_.empty_v[i]), consumer_warps);
    }
    gpu::mbarrier_init_fence();
  }

  // The copying warp.

  /// The stream of this block, walked by a whole warp.
  struct stream {
    problem const& p;
    key_walk<F> keys;
    std::int32_t round = 0, i = 0, head = 0, batch = 0;

    __device__ explicit stream(problem const& p) : p(p), keys(p.f, p.tiles) {}

    /// The block's next query tile, with or without keys; false after the last.
    __device__ bool next_tile() {
      tile_order::place to;
      if (!p.order.take(round++, std::int32_t(blockIdx.x), std::int32_t(gridDim.x), to)) return false;
      i = to.tile, batch = to.head / p.query_heads, head = to.head - batch * p.query_heads;
      keys.start(batch, head, i);
      return true;
    }
    __device__ stream_step next(bool begun) {
      std::int32_t flags = 0;
      if (!begun || keys.done()) {
        do
          if (!next_tile()) return {stream_step::end, 0, 0, 0};
        while (keys.done());
        flags = stream_step::first;
      }
      auto const [j, partial] = keys.next();
      block const t = p.tiles.tile(batch, head, i, j);
      bool const ragged_keys = t.k_end - t.k_begin < size.columns, ragged_rows = t.q_end - t.q_begin < size.rows;
      if (partial || ragged_keys || (has_score<F> && ragged_rows)) flags |= stream_step::masked;
      if (keys.done()) flags |= stream_step::last;
      return {j | flags, i, head, batch};
    }
  };

  /// Keys go ahead of values by one step, as they are used.
  __device__ void produce() {
    stream all(p_);
    std::uint32_t tiles = 0;
    for (std::uint32_t number = 0;; ++number) {
      stream_step const step = all.next(number > 0);
      if (leads()) {
        load_keys(step, number);
        if (number > 0) load_values(number - 1);
        if (step.is(stream_step::first)) load_queries(step, tiles++);
      }
      if (step.is(stream_step::end)) return;
    }
  }

  static __device__ bool leads() { return threadIdx.x % 32 == 0; }

  __device__ __forceinline__ void load_queries(stream_step const& to, std::uint32_t tile) {
    int const stage = query_ring::stage(tile);
    gpu::mbarrier_wait(at(s_.empty_q[stage]), query_ring::parity(tile) ^ 1);
    load(q_.stage(stage), p_.q, at(s_.full_q[stage]), to.i * size.rows, to.head, to.batch);
  }
  /// Announces a step; the last one of all has no keys.
  __device__ __forceinline__ void load_keys(stream_step const& to, std::uint32_t number) {
    int const stage = key_ring::stage(number);
    gpu::mbarrier_wait(at(s_.empty_k[stage]), key_ring::parity(number) ^ 1);
    s_.step[step_ring::stage(number)] = to;
    if (to.is(stream_step::end)) gpu::mbarrier_arrive(at(s_.full_k[stage]));
    else load(k_.stage(stage), p_.k, at(s_.full_k[stage]), to.j() * size.columns, to.head / p_.ratio, to.batch);
  }
  __device__ __forceinline__ void load_values(std::uint32_t number) {
    int const stage = key_ring::stage(number);
    stream_step const to = s_.step[step_ring::stage(number)];
    gpu::mbarrier_wait(at(s_.empty_v[stage]), key_ring::parity(number) ^ 1);
    load(v_.stage(stage), p_.v, at(s_.full_v[stage]), to.j() * size.columns, to.head / p_.ratio, to.batch);
  }
  template <class Tile>
  static __device__ void load(Tile to, CUtensorMap const& map, std::uint32_t full, int row, int head, int batch) {
    gpu::mbarrier_arrive_expect(full, Tile::bytes);
#pragma unroll
    for (int s = 0; s < Tile::slabs; ++s)
      gpu::tma_load(to.slab(s), map, full, s * Tile::slab_columns, row, head, batch);
  }

  /// Rows whose tile has no key to visit, by a warp of its own.
  __device__ void write_empty_tiles() {
    if (!has_mask<F> && p_.tiles.k_tiles() > 0) return;
    stream all(p_);
    while (all.next_tile()) {
      if (!all.keys.done()) continue;
      block const t = p_.tiles.tile(all.batch, all.head, all.i, 0);
      for (int row = t.q_begin; row < t.q_end; ++row) {
        E* const to = p_.o.row(t.batch, row, t.head);
        for (int column = int(threadIdx.x % 32) * 8; column < d; column += 32 * 8)
          *reinterpret_cast<uint4*>(to + column) = {0, 0, 0, 0};
      }
      for (int row = t.q_begin + int(threadIdx.x % 32); row < t.q_end; row += 32) {
        float l = 0.f, max = -infinity;
        if constexpr (has_sink<F>) softmax::add_sink(p_.f(lanewise::row{t.batch, t.head, row}), max, l);
        if (p_.lse) *p_.lse.row(t.batch, row, t.head) = softmax::lse_of(max, l, C.empty_lse);
      }
    }
  }

  // The computing warpgroups.

  /// Where a warpgroup stands, and the rows that it owns.
  struct reader {
    int group;                           ///< rows 64 group ... of a query tile
    std::uint32_t steps = 0, tiles = 0;  ///< taken so far; query tiles whose last step was taken
    __device__ int row() const { return 64 * group + int(threadIdx.x / 32 % 4) * 16; }
  };
  /// A step that was taken: its flags, and its number, which says where the rest of it stands.
  struct taken {
    std::int32_t word;
    std::uint32_t number;
    __device__ bool is(std::int32_t flag) const { return (word & flag) != 0; }
  };

  __device__ void consume(int group) {
    reader at{group};
    scores s;
    output o;
    probabilities p;
    gpu::row_softmax rows;
    float by[2];  // what O is multiplied by once the product that adds to it is over
    gpu::clear<1, on>(o);

    taken next = take_keys(at);
    if (next.is(stream_step::end)) return;
    multiply_queries(s, next, at);
    gpu::wgmma_wait<0>(s[0]);
    release_keys(next, at);
    apply(s, next, at);
    rows.raise(s, p_.scale.factor, by);
    rows.exponentiate(s, p_.scale.factor);
    gpu::feed_rows<E, n>(p, s);
    for (;;) {
      taken const now = next;
      next = take_keys(at);
      gpu::pin(p), gpu::pin(o[0]);
      if (next.is(stream_step::end)) {
        multiply_values(o, p, now, at);
        finish_rows(rows, now, at, by);
        gpu::wgmma_wait<0>(o[0]);
        scale_rows(o, by);
        store(o, now, at);
        return;
      }
      multiply_queries(s, next, at);
      multiply_values(o, p, now, at);
      gpu::wgmma_wait<1>(s[0]);
      release_keys(next, at);
      apply(s, next, at);
      bool const border = next.is(stream_step::first);
      if (border) finish_rows(rows, now, at, by), rows = {};
      float down[2];
      bool const raised = rows.raise(s, p_.scale.factor, down);
      if (raised && !border) by[0] = down[0], by[1] = down[1];
      rows.exponentiate(s, p_.scale.factor);
      gpu::wgmma_wait<0>(o[0]);
      release_values(now);
      if (raised || border) scale_rows(o, by);
      if (border) store(o, now, at);
      gpu::feed_rows<E, n>(p, s);
    }
  }

  /// Waits for the next step of the stream, and for its queries where it opens a tile.
  __device__ __forceinline__ taken take_keys(reader& r) {
    std::uint32_t const number = r.steps++;
    int const stage = key_ring::stage(number);
    gpu::mbarrier_wait(at(s_.full_k[stage]), key_ring::parity(number));
    taken const step{__shfl_sync(0xffffffffu, s_.step[step_ring::stage(number)].word, 0), number};
    if (step.is(stream_step::first))
      gpu::mbarrier_wait(at(s_.full_q[query_ring::stage(r.tiles)]), query_ring::parity(r.tiles));
    return step;
  }
  __device__ __forceinline__ void multiply_queries(scores& s, taken const& step, reader const& r) {
    query_tile const q = q_.stage(query_ring::stage(r.tiles));
    key_tile const k = k_.stage(key_ring::stage(step.number));
    gpu::wgmma_fence();
#pragma unroll
    for (int c = 0; c < d; c += 16) gpu::wgmma<E, true>(s[0], q.rows_from(64 * r.group, c), k.rows_from(0, c), c != 0);
    gpu::wgmma_commit();
  }
  __device__ __forceinline__ void release_keys(taken const& step, reader& r) {
    if (leads()) gpu::mbarrier_arrive(at(s_.empty_k[key_ring::stage(step.number)]));
    if (!step.is(stream_step::last)) return;
    if (leads()) gpu::mbarrier_arrive(at(s_.empty_q[query_ring::stage(r.tiles)]));
    ++r.tiles;
  }
  /// O (+)= P V, once V is there and what it holds of keys that no row of the tile sees is zeroed.
  __device__ __forceinline__ void multiply_values(output& o, probabilities const& p, taken const& step,
                                                  reader const& r) {
    int const stage = key_ring::stage(step.number);
    key_tile const v = v_.stage(stage);
    gpu::mbarrier_wait(at(s_.full_v[stage]), key_ring::parity(step.number));
    if (has_mask<F> && step.is(stream_step::masked)) zero_hidden_keys(v, step, 1 + r.group);
    gpu::wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      gpu::wgmma<E, false>(o[0], p[i], v.columns_from(16 * i), i != 0 || !step.is(stream_step::first));
    gpu::wgmma_commit();
  }
  __device__ __forceinline__ void release_values(taken const& step) {
    if (leads()) gpu::mbarrier_arrive(at(s_.empty_v[key_ring::stage(step.number)]));
  }
  __device__ __forceinline__ block tile_of(taken const& t) const {
    stream_step const step = s_.step[step_ring::stage(t.number)];
    return p_.tiles.tile(step.batch, step.head, step.i, step.j());
  }
  __device__ __forceinline__ void apply(scores& s, taken const& step, reader const& r) const {
    bool const masked = step.is(stream_step::masked);
    if (masked || has_score<F> || p_.scale.before != 1.f)
      gpu::apply_variant_to_rows<n>(s, p_.f, tile_of(step), r.row(), masked, p_.scale);
  }

  /// P is 0 where a key is hidden, but 0 times NaN is not: such rows of V become zeros. Every warpgroup does it by
  /// itself, for the rows of the whole query tile, so that all write the same.
  __device__ __forceinline__ void zero_hidden_keys(key_tile v, taken const& step, int barrier) const {
    block const t = tile_of(step);
    bool hidden[(size.columns + 127) / 128], some = false;
#pragma unroll
    for (int i = 0; i < (size.columns + 127) / 128; ++i) {
      int const key = int(threadIdx.x % 128) + 128 * i;
      hidden[i] = key < t.k_end - t.k_begin && is_hidden(t, t.k_begin + key);
      some |= hidden[i];
    }
    if (!gpu::warpgroup_any(barrier, some)) return;
#pragma unroll
    for (int i = 0; i < (size.columns + 127) / 128; ++i)
      if (hidden[i]) v.zero_row(int(threadIdx.x % 128) + 128 * i);
    gpu::async_proxy_fence();
    gpu::warpgroup_barrier(barrier);
  }
  /// No query of the tile sees key k. The last and the first one see most keys that any sees.
  __device__ bool is_hidden(block const& t, std::int32_t k) const {
    if (keep(p_.f, {t.batch, t.head, t.q_end - 1, k}) || keep(p_.f, {t.batch, t.head, t.q_begin, k})) return false;
    if (cover_of(p_.f, {t.batch, t.head, t.q_begin, t.q_end, k, k + 1}) == cover::empty) return true;
    for (std::int32_t q = t.q_begin + 1; q < t.q_end - 1; ++q)
      if (keep(p_.f, {t.batch, t.head, q, k})) return false;
    return true;
  }

  static __device__ __forceinline__ void scale_rows(output& o, float const (&by)[2]) {
#pragma unroll
    for (int j = 0; j < on; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[0][j].x[e] *= by[e / 2];
  }

  /// LSE = m + log l, and `by` = 1 / l for O; a sink joins as one more key of value zero.
  __device__ __forceinline__ void finish_rows(gpu::row_softmax const& rows, taken const& step, reader const& r,
                                              float (&by)[2]) const {
    block const t = tile_of(step);
    int const lane = gpu::lane_index_anew();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t const q = t.q_begin + r.row() + 8 * half + lane / 4;
      float l = gpu::row_sum(rows.sum[half]), max = rows.maximum[half] * p_.scale.factor;
      by[half] = l == 0.f ? 0.f : 1.f;
      if constexpr (has_sink<F>)
        if (q < t.q_end) by[half] *= softmax::add_sink(p_.f(lanewise::row{t.batch, t.head, q}), max, l);
      by[half] *= softmax::inverse_of(l);
      if (p_.lse && q < t.q_end && lane % 4 == 0)
        *p_.lse.row(t.batch, q, t.head) = softmax::lse_of(max, l, C.empty_lse);
    }
  }
  __device__ __forceinline__ void store(output const& o, taken const& step, reader const& r) const {
    block const t = tile_of(step);
    constexpr float finished[1][2] = {{1.f, 1.f}};
    gpu::store_rows<d, E>(
        {p_.o.row(t.batch, t.q_begin, t.head), p_.o.stride.sequence, t.q_end - t.q_begin, true, false}, r.row(), o,
        finished);
  }

  problem const& p_;
  signals& s_;
  query_tile q_;
  key_tile k_, v_;
};

}  // namespace lanewise::sm90
