// Flash attention forward on wgmma and TMA (Shah et al. 2024, algorithms 1 and 2), sm_90a.
//
// A block stays on its multiprocessor and walks the query tiles that the schedule gives it. One warp copies: it says
// which key tile comes next and starts its transfer. Two to four warpgroups compute, 64 query rows each:
//   S = Q K^T,  P = 2^(S - b),  l = l + rowsum(P),  O = O + P V
// While the softmax of a key tile is computed, O += P V of the tile before it runs. The base b of a row is set from the
// maximum of the first key tile that it sees and kept; only where some P grows past a bound, which one bit of each
// rounded P tells, it is set anew and l and O are scaled (tile/wgmma_softmax.cuh). The key tiles of all query tiles
// form one stream: at the border of two query tiles the last O += P V of the one runs while Q of the other arrives, and
// S of the other while O is stored.
#pragma once

#include "../instruction/bulk.cuh"
#include "../instruction/ldmatrix.cuh"
#include "../instruction/mbarrier.cuh"
#include "../instruction/mma.cuh"
#include "../instruction/stmatrix.cuh"
#include "../instruction/tma.cuh"
#include "../instruction/warpgroup.cuh"
#include "../instruction/wgmma.cuh"
#include "../launch.cuh"
#include "../tensor_map.hpp"
#include "../tile/scores.cuh"
#include "../tile/store.cuh"
#include "../tile/swizzled_tile.cuh"
#include "../tile/wgmma_softmax.cuh"
#include "hidden_rows.cuh"
#include "schedule.cuh"
#include "tiles.hpp"

namespace lanewise::sm90 {

/// One step of the stream: key tile, query tile, query head.
struct stream_step {
  std::int32_t j, i, head, batch;
  /// Flags of a step as a warpgroup sees it. `partial` and `ragged` speak of its rows alone; in a `hidden` step none of
  /// them sees a key, which is never a tile's last.
  static constexpr std::int32_t end = 1 << 30, partial = 1 << 29, ragged = 1 << 28, first = 1 << 27, last = 1 << 26,
                                hidden = 1 << 23;
};

/// A step as the copying warp announces it.
template <int groups>
struct announcement {
  stream_step step;
  std::int32_t word[groups];  ///< flags for each warpgroup

  __device__ announcement(stream_step step, std::int32_t flags) : step(step) {
#pragma unroll
    for (int g = 0; g < groups; ++g) word[g] = flags;
  }
  /// `flag` where bit g of `of` is set.
  __device__ void add(std::int32_t flag, std::uint32_t of) {
#pragma unroll
    for (int g = 0; g < groups; ++g) word[g] |= of >> g & 1 ? flag : 0;
  }
  __device__ bool is(std::int32_t flag) const { return (word[0] & flag) != 0; }  ///< one that all share
};

template <config C, class F, forward_shape size>
class forward_kernel {
  using E = element<C>;
  static constexpr int d = C.head_dim, width = width_of<C>, n = size.columns / 8, on = width / 8;
  using query_tile = gpu::swizzled_tile<E, size.rows, d>;
  using key_tile = gpu::swizzled_tile<E, size.columns, d>;
  using scores = gpu::accumulators<1, n>;
  using output = gpu::accumulators<1, on>;
  using probabilities = std::uint32_t[n / 2][4];
  using query_ring = gpu::ring<size.query_buffers>;
  using key_ring = gpu::ring<size.key_buffers>;
  using value_ring = gpu::ring<size.value_buffers>;
  /// O leaves through the buffer of its Q, by the copy engine, while the next tile's Q stands in the other.
  static constexpr bool stores_through_q = size.query_buffers > 1;
  using output_part = gpu::swizzled_tile<E, 16, d>;  ///< of a warp
  /// A step is still asked for while the next one is in use and the one after it is taken, with hidden steps between.
  using step_ring = gpu::ring<16>;
  static constexpr int most_hidden = size.value_buffers - 1;  ///< steps in a row; take_keys says why
  static_assert(2 * size.value_buffers + size.key_buffers + 1 <= step_ring::size);

 public:
  static constexpr char const* name = "sm90 forward, wgmma";
  static constexpr int threads = size.threads();
  static constexpr int shared_bytes =
      fits<size.query_buffers * query_tile::bytes + (size.key_buffers + size.value_buffers) * key_tile::bytes>();

  struct problem {
    CUtensorMap q, k, v, out;
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
            {},
            a.o,
            a.lse,
            f,
            gpu::score_scale_of<F>(a.scale),
            tiles,
            tile_order_of(tiles, a.q.size, ratio, bytes_of_key_head, resident<F>),
            std::int32_t(a.q.size.heads),
            ratio};
  }
  /// False where the copy engine cannot walk a view, or O is not stored 16 bytes at a time.
  static bool encode_maps(problem& p, forward_args<C> const& a) {
    if (p.order.count() == 0) return true;
    bool const keys =
        p.tiles.k == 0 || (gpu::encode_tensor_map<key_tile>(p.k, a.k) && gpu::encode_tensor_map<key_tile>(p.v, a.v));
    bool const output = stores_through_q ? gpu::encode_tensor_map<output_part>(p.out, a.o) : gpu::aligned_to_16(a.o);
    return keys && gpu::encode_tensor_map<query_tile>(p.q, a.q) && output;
  }

  /// Barriers of the buffers, and the last steps announced.
  struct signals {
    std::uint64_t full_q[size.query_buffers], empty_q[size.query_buffers];
    std::uint64_t full_k[size.key_buffers], empty_k[size.key_buffers];
    std::uint64_t full_v[size.value_buffers], empty_v[size.value_buffers];
    alignas(16) stream_step step[step_ring::size];
    std::int32_t word[step_ring::size][size.consumers()];
  };

  __device__ forward_kernel(problem const& p, std::uint32_t shared, signals& s)
      : p_(p),
        s_(s), q_{shared}, k_{shared + size.query_buffers * query_tile::bytes}, v_{k_.base + size.key_buffers *
                                                                                                 key_tile::bytes} {}

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
    auto const start = [](std::uint64_t& full, std::uint64_t& empty) {
      gpu::mbarrier_init(at(full), 1);
      gpu::mbarrier_init(at(empty), consumer_warps);
    };
    for (int i = 0; i < size.query_buffers; ++i) start(s_.full_q[i], s_.empty_q[i]);
    for (int i = 0; i < size.key_buffers; ++i) start(s_.full_k[i], s_.empty_k[i]);
    for (int i = 0; i < size.value_buffers; ++i) start(s_.full_v[i], s_.empty_v[i]);
    gpu::mbarrier_init_fence();
  }

  // The copying warp.

  /// The stream of this block, walked by a whole warp.
  struct stream {
    problem const& p;
    key_walk<F, size.consumers()> keys;
    std::uint32_t hidden_before = 0;  ///< from which groups the last steps were hidden, the latest in the lowest bits
    std::int32_t round = 0, i = 0, head = 0, batch = 0, key_head = 0;

    __device__ explicit stream(problem const& p) : p(p), keys(p.f, p.tiles) {}

    /// The block's next query tile, with or without keys; false after the last.
    __device__ bool next_tile() {
      tile_order::place to;
      if (!p.order.take(round++, std::int32_t(blockIdx.x), std::int32_t(gridDim.x), to)) return false;
      i = to.tile, batch = to.head / p.query_heads, head = to.head - batch * p.query_heads, key_head = head / p.ratio;
      keys.start(batch, head, i);
      return true;
    }
    __device__ announcement<size.consumers()> next(bool begun) {
      std::int32_t flags = 0;
      if (!begun || keys.done()) {
        do
          if (!next_tile()) return {{}, stream_step::end};
        while (keys.done());
        flags = stream_step::first;
      }
      auto const [j, partial, hidden] = keys.next();
      bool const ragged_keys = p.tiles.k - j * size.columns < size.columns;
      bool const scaled = !has_score<F> && p.scale.before != 1.f;  // a factor that is not positive
      if (ragged_keys || scaled) flags |= stream_step::ragged;
      if (keys.done()) flags |= stream_step::last;
      announcement<size.consumers()> all({j, i, head, batch}, flags);
      all.add(stream_step::partial, partial);
      all.add(stream_step::ragged, ragged_rows());
      if (!keys.done()) all.add(stream_step::hidden, may_hide(hidden));
      return all;
    }
    /// The groups some of whose rows do not exist, where it matters: a mask and a score are asked about pairs that
    /// exist. The results of such rows are dropped, so that no mask is asked where none exists.
    __device__ std::uint32_t ragged_rows() const {
      std::uint32_t groups = 0;
#pragma unroll
      for (int g = 0; g < size.consumers(); ++g) {
        std::int32_t const rows = p.tiles.q - i * size.rows - 64 * g;
        if (rows < 64 && (has_score<F> || (has_mask<F> && rows > 0))) groups |= 1u << g;
      }
      return groups;
    }
    /// The groups that may pass this step over: not all at once, and none more than most_hidden times in a row.
    __device__ std::uint32_t may_hide(std::uint32_t groups) {
      constexpr int bits = size.consumers();
      if (groups == (1u << bits) - 1) groups = 0;
      std::uint32_t always = groups;
#pragma unroll
      for (int i = 0; i < most_hidden; ++i) always &= hidden_before >> i * bits;
      groups &= ~always;
      hidden_before = hidden_before << bits | groups;
      return groups;
    }
  };
  /// Where K and V of a step lie.
  struct source {
    int row, head, batch;
  };

  /// Keys go ahead of values by one step, as they are used. One step has to take less time here than there.
  __device__ void produce() {
    stream all(p_);
    source before{};
    std::uint32_t tiles = 0;
    for (std::uint32_t number = 0;; ++number) {
      auto const step = all.next(number > 0);
      source const here{step.step.j * size.columns, all.key_head, step.step.batch};
      if (gpu::elect_one()) {
        load_keys(step, here, number);
        if (number > 0) load_values(before, number - 1);
        if (step.is(stream_step::first)) load_queries(step.step, tiles);
      }
      if (step.is(stream_step::first)) ++tiles;
      if (step.is(stream_step::end)) return;
      before = here;
    }
  }

  __device__ __forceinline__ void load_queries(stream_step const& to, std::uint32_t tile) {
    int const stage = query_ring::stage(tile);
    gpu::mbarrier_wait(at(s_.empty_q[stage]), query_ring::parity(tile) ^ 1);
    load(q_.stage(stage), p_.q, at(s_.full_q[stage]), {to.i * size.rows, to.head, to.batch});
  }
  /// Announces a step; the last one of all has no keys.
  __device__ __forceinline__ void load_keys(announcement<size.consumers()> const& to, source const& from,
                                            std::uint32_t number) {
    int const stage = key_ring::stage(number);
    gpu::mbarrier_wait(at(s_.empty_k[stage]), key_ring::parity(number) ^ 1);
    s_.step[step_ring::stage(number)] = to.step;
#pragma unroll
    for (int g = 0; g < size.consumers(); ++g) s_.word[step_ring::stage(number)][g] = to.word[g];
    if (to.is(stream_step::end)) gpu::mbarrier_arrive(at(s_.full_k[stage]));
    else load(k_.stage(stage), p_.k, at(s_.full_k[stage]), from);
  }
  __device__ __forceinline__ void load_values(source const& from, std::uint32_t number) {
    int const stage = value_ring::stage(number);
    gpu::mbarrier_wait(at(s_.empty_v[stage]), value_ring::parity(number) ^ 1);
    load(v_.stage(stage), p_.v, at(s_.full_v[stage]), from);
  }
  template <class Tile>
  static __device__ __forceinline__ void load(Tile to, CUtensorMap const& map, std::uint32_t full, source const& from) {
    gpu::mbarrier_arrive_expect(full, Tile::bytes);
#pragma unroll
    for (int s = 0; s < Tile::slabs; ++s)
      gpu::tma_load(to.slab(s), map, full, s * Tile::slab_columns, from.row, from.head, from.batch);
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

  static __device__ bool leads() { return threadIdx.x % 32 == 0; }

  /// Where a warpgroup stands, and the rows that it owns.
  struct reader {
    int group;                           ///< rows 64 group ... of a query tile
    std::uint32_t steps = 0, tiles = 0;  ///< taken so far; query tiles whose last step was taken
    __device__ int row() const { return 64 * group + int(threadIdx.x / 32 % 4) * 16; }
  };
  /// A step that was taken: its flags, and its number, which says where the rest of it stands. What the word does not
  /// need any more holds the flags of the step taken before and how many were
  /// passed over between the two: one register of the 160 that three warpgroups have each.
  struct taken {
    std::int32_t word;
    std::uint32_t number;
    static constexpr std::int32_t before = stream_step::last;  ///< flags / before are those of the step before
    /// What a plain step is free of. It may be a tile's last, and the second: it is no border, and sees all of its
    /// tile.
    static constexpr std::int32_t not_plain = stream_step::end | stream_step::partial | stream_step::ragged |
                                              stream_step::first | stream_step::partial / before |
                                              7 * stream_step::hidden;
    __device__ bool is(std::int32_t flag) const { return (word & flag) != 0; }
    __device__ bool follows_first() const { return is(stream_step::first / before); }
    __device__ taken follow(taken const& step, std::int32_t passed) const {
      std::int32_t const flags_before = std::int32_t(std::uint32_t(word) / before % 32);
      return {(step.word & -before) | passed * stream_step::hidden | flags_before, step.number};
    }
    __device__ taken step_before() const {
      return {std::int32_t(std::uint32_t(word) * before), number - 1 - std::uint32_t(word) / stream_step::hidden % 8};
    }
  };

  /// Q and K of one step, V of the one before it.
  struct operands {
    gpu::wgmma_operand q, k, v;
  };
  /// What a warpgroup holds between two steps: P of a step that is not yet multiplied by V, O and the softmax of its
  /// tile up to it, what O is multiplied by once the product that adds to it is over, and the operands of the step to
  /// come, should it be plain.
  struct progress {
    scores s;
    output o;
    probabilities p;
    gpu::row_softmax<E> rows;
    float by[2];
    operands plain;
  };

  __device__ void consume(int group) {
    reader at{group};
    progress x;
    gpu::clear<1, on>(x.o);
    taken const start = take_step(at, {}, not_there);
    if (start.is(stream_step::end)) return;
    await_queries(at);
    multiply_queries(x.s, operands_of(start, start, at));
    gpu::wgmma_wait<0>(x.s[0]);
    std::int32_t const asks = open(x, at, start);
    std::int32_t word = take(x, at, start, not_there) | asks;  // of the step after the one whose P is at hand
    while (true) {
      if constexpr (!has_score<F>)  // which asks as much of a plain step as of any
        while ((word & taken::not_plain) == 0) word = advance<true>(x, at, word);
      if (word & stream_step::end) break;
      word = word & stream_step::first ? cross(x, at, word) : advance<false>(x, at, word);
    }
    finish(x, at, taken{word, at.steps - 1}.step_before());
  }
  /// The softmax of a tile's first step, whose S is there; what it asks of the step after it.
  __device__ __forceinline__ std::int32_t open(progress& x, reader& at, taken const& step) {
    apply(x.s, step, at);
    x.rows = {};
    x.rows.set_base(x.s, p_.scale.factor, x.by);
    x.rows.exponentiate(x.s, p_.scale.factor);
    gpu::feed_rows<E, n>(x.p, x.s);
    x.rows.add();
    release_keys(step, at);
    return x.rows.any_without_base() ? stream_step::ragged : 0;
  }
  /// From one query tile to the next: the last O += P V of the one while Q of the other is waited for, S of the other
  /// while O is stored.
  __device__ __forceinline__ std::int32_t cross(progress& x, reader& at, std::int32_t word) {
    taken const next{word, at.steps - 1}, now = next.step_before();
    hide_values(now, at);
    operands const from = operands_of(next, now, at);
    gpu::pin(x.p), gpu::pin(x.o[0]);
    multiply_values(x, from, !now.is(stream_step::first));
    constexpr bool queries_are_late = size.query_buffers == 1;  // asked for when the tile before had done with them
    if (queries_are_late) finish_rows(x.rows, now, at, x.by);
    await_queries(at);
    multiply_queries(x.s, from);
    if (!queries_are_late) finish_rows(x.rows, now, at, x.by);
    gpu::wgmma_wait<1>(x.o[0]);
    release(s_.empty_v[value_ring::stage(now.number)]);
    scale_rows(x.o, x.by);
    store(x.o, now, at);
    gpu::wgmma_wait<0>(x.s[0]);
    int const stored = query_ring::stage(at.tiles - 1);
    std::int32_t const asks = open(x, at, next);
    if (stores_through_q) release_stored(stored);
    return take(x, at, next, not_there) | asks;
  }

  /// One step of the pipeline within a tile: S of the next step and O of this one, the softmax of the next beside O.
  /// Most are plain: for them all that asks for flags is gone at compile time, with some 600 of 3100 cycles of a step.
  template <bool plain>
  __device__ __forceinline__ std::int32_t advance(progress& x, reader& at, std::int32_t word) {
    taken const next{word, at.steps - 1}, now = plain ? taken{0, at.steps - 2} : next.step_before();
    if (!plain) hide_values(now, at);
    operands const from = plain ? x.plain : operands_of(next, now, at);
    gpu::pin(x.p), gpu::pin(x.o[0]);
    multiply_queries(x.s, from);
    multiply_values(x, from, !next.follows_first());
    gpu::wgmma_wait<1>(x.s[0]);
    if (!plain) apply(x.s, next, at);
    // Here, since ptxas moves it no further up, and behind the exponentials nothing hides its latency.
    std::int32_t const seen =
        plain || size.consumers() == 2 ? look_ahead(at) : not_there;  // 160 registers hold no more
    if (plain) x.plain = operands_of({0, at.steps}, next, at);

    bool const scale = !plain && x.rows.any_without_base();
    if (scale) x.rows.set_base(x.s, p_.scale.factor, x.by);
    x.rows.exponentiate(x.s, p_.scale.factor);
    gpu::wgmma_wait<0>(x.o[0]);
    release(s_.empty_v[value_ring::stage(now.number)]);
    if (scale) scale_rows(x.o, x.by);
    gpu::feed_rows<E, n>(x.p, x.s);
    if (x.rows.exceeds(x.p)) raise_base(x, next, at);
    x.rows.add();
    release_keys(next, at);
    // A row without a base asks for a step that is not plain.
    std::int32_t const asks = !plain && x.rows.any_without_base() ? stream_step::ragged : 0;
    if (plain && (seen & taken::not_plain) == 0) return ++at.steps, seen & stream_step::last;
    return take(x, at, next, seen) | asks;
  }
  /// The end of the stream: O of the last tile.
  __device__ __forceinline__ void finish(progress& x, reader const& at, taken const& now) {
    hide_values(now, at);
    gpu::pin(x.p), gpu::pin(x.o[0]);
    multiply_values(x, operands_of(now, now, at), !now.is(stream_step::first));
    finish_rows(x.rows, now, at, x.by);
    gpu::wgmma_wait<0>(x.o[0]);
    scale_rows(x.o, x.by);
    store(x.o, now, at);
    if (stores_through_q && gpu::elect_one()) gpu::bulk_wait_read();  // while the block still owns the memory
  }

  /// P grew past its bound, or is NaN: S once more, from which every row of this warp gets its base anew. By mma.sync,
  /// since the other warps of the warpgroup go on.
  __device__ __forceinline__ void raise_base(progress& x, taken const& step, reader const& at) const {
    scores_of_warp(x.s, step, at);
    apply(x.s, step, at);
    float down[2];
    x.rows.set_base(x.s, p_.scale.factor, down);
    x.rows.exponentiate(x.s, p_.scale.factor);
    scale_rows(x.o, down);
    gpu::feed_rows<E, n>(x.p, x.s);
  }
  /// S = Q K^T, the 16 rows of this warp.
  __device__ __forceinline__ void scores_of_warp(scores& s, taken const& step, reader const& at) const {
    query_tile const q = q_.stage(query_ring::stage(at.tiles));
    key_tile const k = k_.stage(key_ring::stage(step.number));
    int const lane = gpu::lane_index_anew();
    gpu::clear<1, n>(s);
#pragma unroll 1
    for (int c = 0; c < d; c += 16) {
      std::uint32_t a[4], b[4];
      gpu::ldmatrix(a, q.chunk(at.row() + lane % 16, c / 8 + lane / 16));
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        gpu::ldmatrix(b, k.chunk(8 * j + lane % 8 + lane / 16 * 8, c / 8 + lane / 8 % 2));
        gpu::mma_m16n8k16(E{}, s[0][j].x, a, b[0], b[1]);
        gpu::mma_m16n8k16(E{}, s[0][j + 1].x, a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ operands operands_of(taken const& step, taken const& before, reader const& r) const {
    return {q_.stage(query_ring::stage(r.tiles)).rows_from(64 * r.group),
            k_.stage(key_ring::stage(step.number)).rows_from(0),
            v_.stage(value_ring::stage(before.number)).all_columns()};
  }
  /// S = Q K^T
  static __device__ __forceinline__ void multiply_queries(scores& s, operands const& from) {
    gpu::wgmma_operand const q = from.q.of_warp(), k = from.k.of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int c = 0; c < d; c += 16)
      gpu::wgmma<E, true>(s[0], q + query_tile::column_offset(c), k + key_tile::column_offset(c), c != 0);
    gpu::wgmma_commit();
  }
  /// O (+)= P V
  static __device__ __forceinline__ void multiply_values(progress& x, operands const& from, bool add) {
    gpu::wgmma_operand const v = from.v.of_warp();
    gpu::wgmma_fence();
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      gpu::wgmma<E, false>(x.o[0], x.p[i], v + key_tile::row_offset(16 * i), i != 0 || add);
    gpu::wgmma_commit();
  }
  /// V's rows of keys that no query of the tile sees become zeros before they meet P.
  __device__ __forceinline__ void hide_values(taken const& step, reader const& r) {
    if (!has_mask<F> || !step.is(stream_step::partial)) return;
    block const t = tile_of(step);
    auto const hidden = [&](std::int32_t key) {
      return key < t.k_end - t.k_begin && no_query_sees(p_.f, t, t.k_begin + key);
    };
    zero_hidden_rows<size.columns>(1 + r.group, hidden, v_.stage(value_ring::stage(step.number)));
  }

  static __device__ __forceinline__ void await(std::uint64_t& full, std::uint32_t parity) {
    gpu::mbarrier_wait(at(full), parity);
    __syncwarp();
  }
  __device__ __forceinline__ void await_queries(reader const& r) const {
    await(s_.full_q[query_ring::stage(r.tiles)], query_ring::parity(r.tiles));
  }
  /// By one thread of each warp.
  static __device__ __forceinline__ void release(std::uint64_t& empty) {
    if (leads()) gpu::mbarrier_arrive(at(empty));
  }
  __device__ __forceinline__ void release_keys(taken const& step, reader& r) {
    release(s_.empty_k[key_ring::stage(step.number)]);
    if (!step.is(stream_step::last)) return;
    if (!stores_through_q) release(s_.empty_q[query_ring::stage(r.tiles)]);
    ++r.tiles;
  }
  /// The buffer of Q through which O was stored. Before the next step is taken: with hidden steps that may wait for
  /// keys which the copying warp loads after the Q of this buffer.
  __device__ __forceinline__ void release_stored(int stage) {
    if (gpu::elect_one()) gpu::bulk_wait_read(), gpu::mbarrier_arrive(at(s_.empty_q[stage]));
  }

  static constexpr std::int32_t not_there = -1;

  /// The next step of the stream where its keys and the values before them are there already; asked before work that
  /// hides the answer's latency.
  __device__ __forceinline__ std::int32_t look_ahead(reader const& r) const {
    bool const keys = gpu::mbarrier_test(at(s_.full_k[key_ring::stage(r.steps)]), key_ring::parity(r.steps));
    bool const values =
        gpu::mbarrier_test(at(s_.full_v[value_ring::stage(r.steps - 1)]), value_ring::parity(r.steps - 1));
    std::int32_t const word = word_of(r.steps, r.group);
    return __all_sync(0xffffffffu, keys && values) ? word : not_there;
  }
  /// Takes the step after `step`, and waits for V of that one.
  __device__ __forceinline__ std::int32_t take(progress& x, reader& r, taken const& step, std::int32_t seen) {
    taken const next = take_step(r, step, seen);
    if (seen == not_there) await(s_.full_v[value_ring::stage(step.number)], value_ring::parity(step.number));
    x.plain = operands_of(next, step, r);
    return next.word;
  }
  /// Waits for the next step that this warpgroup sees, and for its queries where it is the first of a tile. The buffers
  /// of the others are given back unread, once they are full, since until then the barrier counts for the tile before
  /// them in that buffer. That one is behind us as long as fewer steps than V has buffers are passed over.
  __device__ __forceinline__ taken take_step(reader& r, taken const& before, std::int32_t seen) {
    std::int32_t opened = 0;
    for (std::int32_t passed = 0;; ++passed) {
      taken step{seen, r.steps++};
      int const key_stage = key_ring::stage(step.number), value_stage = value_ring::stage(step.number);
      if (seen == not_there) {
        await(s_.full_k[key_stage], key_ring::parity(step.number));
        step.word = word_of(step.number, r.group);
      }
      step.word |= opened;
      if (!step.is(stream_step::hidden)) return before.follow(step, passed);
      opened = step.word & stream_step::first;
      seen = not_there;
      release(s_.empty_k[key_stage]);
      await(s_.full_v[value_stage], value_ring::parity(step.number));
      release(s_.empty_v[value_stage]);
    }
  }
  __device__ __forceinline__ std::int32_t word_of(std::uint32_t number, int group) const {
    std::int32_t const volatile& word = s_.word[step_ring::stage(number)][group];
    return __shfl_sync(0xffffffffu, word, 0);
  }
  __device__ __forceinline__ block tile_of(taken const& t) const {
    stream_step const step = s_.step[step_ring::stage(t.number)];
    return p_.tiles.tile(step.batch, step.head, step.i, step.j);
  }
  __device__ __forceinline__ void apply(scores& s, taken const& step, reader const& r) const {
    if (!has_score<F> && !step.is(stream_step::partial | stream_step::ragged)) return;
    // 160 registers do not hold what two need; a score stands in every place that asks for it, and beside one a look at
    // the edges is little.
    constexpr bool one_path = has_score<F> ? !has_mask<F> : size.consumers() > 2;
    gpu::apply_variant<gpu::rows_are::queries>(s, no_raw, p_.f, tile_of(step), r.row(),
                                               step.is(stream_step::partial) ? cover::partial : cover::full,
                                               one_path || step.is(stream_step::ragged), p_.scale);
  }

  static __device__ __forceinline__ void scale_rows(output& o, float const (&by)[2]) {
#pragma unroll
    for (int j = 0; j < on; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[0][j].x[e] *= by[e / 2];
  }

  /// The problem, hidden from the optimiser: what is read of it once a tile is not held in registers through the loop.
  __device__ problem const& problem_anew() const {
    int zero;
    asm volatile("mov.u32 %0, 0;" : "=r"(zero));
    return (&p_)[zero];
  }
  /// LSE = b + log l, and `by` = 1 / l for O; a sink joins as one more key of value zero.
  __device__ __forceinline__ void finish_rows(gpu::row_softmax<E> const& rows, taken const& step, reader const& r,
                                              float (&by)[2]) const {
    block const t = tile_of(step);
    view<float> const& lse = problem_anew().lse;
    int const lane = gpu::lane_index_anew();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t const q = t.q_begin + r.row() + 8 * half + lane / 4;
      float l = gpu::row_sum(rows.sum[half]), base = rows.base[half];
      by[half] = l == 0.f ? 0.f : 1.f;
      if constexpr (has_sink<F>)
        if (q < t.q_end) by[half] *= softmax::add_sink(p_.f(lanewise::row{t.batch, t.head, q}), base, l);
      by[half] *= softmax::inverse_of(l);
      if (lse && q < t.q_end && lane % 4 == 0) *lse.row(t.batch, q, t.head) = softmax::lse_of(base, l, C.empty_lse);
    }
  }
  __device__ __forceinline__ void store(output const& o, taken const& step, reader const& r) const {
    if constexpr (stores_through_q) store_through_q(o, step, r);
    else store_rows(o, step, r);
  }
  /// The 16 rows of this warp. No product reads these rows of Q any more: those of the other warps do not, and those of
  /// this one are over. The copy engine leaves out rows past the end.
  __device__ __forceinline__ void store_through_q(output const& o, taken const& step, reader const& r) const {
    query_tile const through = q_.stage(query_ring::stage(r.tiles - 1));
    int const lane = gpu::lane_index_anew();
#pragma unroll
    for (int j = 0; j < on; j += 2) {
      std::uint32_t x[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        x[i] = gpu::pack(E{}, o[0][j + i / 2].x[2 * (i % 2)], o[0][j + i / 2].x[2 * (i % 2) + 1]);
      gpu::stmatrix(through.chunk(r.row() + lane % 16, j + lane / 16), x);
    }
    gpu::async_proxy_fence();
    __syncwarp();
    stream_step const to = s_.step[step_ring::stage(step.number)];
    if (gpu::elect_one()) {
#pragma unroll
      for (int s = 0; s < query_tile::slabs; ++s)
        gpu::tma_store(p_.out, through.slab(s) + std::uint32_t(r.row() * query_tile::span),
                       s * query_tile::slab_columns, to.i * size.rows + r.row(), to.head, to.batch);
      gpu::bulk_commit();
    }
  }
  __device__ __forceinline__ void store_rows(output const& o, taken const& step, reader const& r) const {
    block const t = tile_of(step);
    view<E> const& to = problem_anew().o;
    constexpr float finished[1][2] = {{1.f, 1.f}};
    gpu::store_rows<d, E>({to.row(t.batch, t.q_begin, t.head), to.stride.sequence, t.q_end - t.q_begin, true, false},
                          r.row(), o, finished);
  }

  static constexpr scores* no_raw = nullptr;

  problem const& p_;
  signals& s_;
  query_tile q_;
  key_tile k_, v_;
};

}  // namespace lanewise::sm90
