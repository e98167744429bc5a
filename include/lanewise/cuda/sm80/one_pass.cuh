// The backward in one pass (Dao 2023, algorithm 2), on mma.sync: dK and dV of one key tile and its share of dQ, five
// products where the kernels of backward_keys.cuh and backward_queries.cuh need seven.
//
// A block owns one key tile of one (batch, key/value head) and walks the query tiles of every query head of the group
// downwards, each for all heads:
//   S^T = K Q^T,  P^T = 2^(S^T - LSE),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q
//   dQ += dS K, dS through shared memory
// Scores are transposed so that a warp feeds P^T and dS^T from the accumulators that hold them; where two warps share
// keys, each also reads the other's half from shared memory.
//
// Each warp adds its share of dQ to an f32 sum in the workspace, one key tile after the other in a fixed order, through
// the copy engine, which sm_90 was the first to have (query_sums.cuh). The first to come writes instead of adding, so
// that nothing is cleared beforehand.
#pragma once

#include "../instruction/bulk.cuh"
#include "../sm90/backward_tiles.hpp"
#include "../sm90/hidden_rows.cuh"
#include "backward_problem.cuh"
#include "query_sums.cuh"

namespace lanewise::sm80 {

template <config C, class F>
class one_pass_kernel {
  using E = element<C>;
  using G = gradient<C>;
  using op = gpu::operation<C.precision>;
  static constexpr one_pass_shape size = one_pass_tile<C>;
  static constexpr int d = C.head_dim, width = width_of<C>(), halves = size.halves, slabs = query_sums::slabs(d);
  static constexpr int warps = size.warps();
  /// A warp's pairs at a time: 16 m keys x 8 n queries.
  static constexpr int m = 2, n = 4, piece = 8 * n, pieces = size.columns / piece;
  static constexpr int own_columns = width / halves;  ///< of dK and dV in a warp
  /// Steps of K of S^T and of dP^T in one stretch of code: beside S^T, dP^T has no registers for the addresses of more.
  static constexpr int unroll = 8, unroll_beside = 2;
  using key_tile = typename op::template tile<size.rows, width>;
  using query_tile = typename op::template tile<size.columns, width>;
  using score_tile = typename op::template tile<size.rows, size.columns>;
  using scores = gpu::accumulators<m, n>;
  using key_gradient = gpu::accumulators<m, own_columns / 8>;
  /// A warp's share of a part of dQ: 32 of 64 rows, 32 of 64 columns.
  using query_gradient = gpu::accumulators<m, n>;
  /// P^T or dS^T of a piece, rounded.
  using rounded = typename op::fed[m][n / op::c_tiles];
  static constexpr int row_bytes = size.columns * int(sizeof(float));        ///< LSE or delta of a query tile
  static constexpr int share_bytes = query_sums::part * int(sizeof(float));  ///< of dQ, on its way to the sums
  /// What blocks know of their walk lies in shared memory, 16 bytes each: this key tile, the step planned last, and
  /// four steps of which up to three are in use. In registers it would not fit beside the accumulators.
  static constexpr int walk_bytes = 16 * (2 + 4);
  static_assert(warps == 4 && size.columns == 64 && pieces == 2 && row_padding % size.columns == 0);

 public:
  static constexpr char const* name = "sm80 backward, one pass";
  static constexpr int threads = 32 * warps;
  static constexpr int shared_bytes = fits<2 * key_tile::bytes + 2 * size.stages * query_tile::bytes +
                                           halves * score_tile::bytes + share_bytes + 2 * 2 * row_bytes + walk_bytes>();
  static_assert(size.rows <= threads && size.columns <= threads, "a thread for each row");

  struct problem : backward_problem<C, F> {
    sm90::key_order order;
    float* sums;           ///< query_sums of every query tile; null: dQ is not wanted
    std::uint32_t* turns;  ///< of every query tile and warp, 1 + the key tile added last; all 0 before the launch
    std::uint32_t* drawn;  ///< numbers drawn by blocks so far; 0 before the launch
  };
  static __host__ __device__ tiling tiles_of(backward_problem<C, F> const& p) {
    return p.tiles(size.columns, size.rows);
  }
  static tiling tiles_of(extents q, extents k) {
    return {std::int32_t(q.sequence), std::int32_t(k.sequence), size.columns, size.rows};
  }
  static std::int64_t query_tiles(extents q) { return q.batch * q.heads * tiles_of(q, q).q_tiles(); }
  static std::int64_t turn_words(extents q) { return query_tiles(q) * warps + 1; }
  static problem problem_of(backward_args<C> const& a, F const& f, row_values row, float* sums, std::uint32_t* turns) {
    backward_problem<C, F> const base(a, f, row);
    return {base, sm90::key_order_of(tiles_of(base), a.k.size, size.heads_in_step), sums, turns,
            turns + turn_words(a.q.size) - 1};
  }
  static std::int64_t units(problem const& p) { return p.order.count(); }

  __device__ one_pass_kernel(problem const& p, std::uint32_t shared)
      : p_(p), k_{shared}, v_{k_.base + key_tile::bytes}, q_{v_.base + key_tile::bytes},
        d_o_{q_.base + size.stages * query_tile::bytes}, ds_{d_o_.base + size.stages * query_tile::bytes},
        shares_(ds_.base + halves * score_tile::bytes), rows_(shares_ + share_bytes), walk_(rows_ + 2 * 2 * row_bytes) {
  }

  __device__ __forceinline__ void run(std::int64_t unit) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      begin_walk(unit);
      plan(0);
      plan(1);
    }
    __syncthreads();
    gpu::clear<m, own_columns / 8>(d_k_);
    gpu::clear<m, own_columns / 8>(d_v_);
    if (!planned(0).is_end()) {
      load_keys();
      load_q(0);
      load_d_o(0);
      hide_keys();
    }
    std::uint32_t number = 0;
    for (; !planned(number).is_end(); ++number) step(number);
    pass_turn(number);
    finish();
#endif
  }

 private:
  __device__ tiling tiles() const { return tiles_of(p_); }

  // The walk, by one thread.

  static __device__ std::int32_t word(std::uint32_t address) { return std::int32_t(gpu::load_shared_word(address)); }
  static __device__ void put_words(std::uint32_t address, std::int32_t x, std::int32_t y, std::int32_t z,
                                   std::int32_t w) {
    gpu::store_shared_4(address, std::uint32_t(x), std::uint32_t(y), std::uint32_t(z), std::uint32_t(w));
  }
  /// This block's key tile.
  __device__ std::int32_t j() const { return word(walk_); }
  __device__ std::int32_t batch() const { return word(walk_ + 4); }
  __device__ std::int32_t key_head() const { return word(walk_ + 8); }

  /// A query tile of one of the group's heads: read again where it is needed.
  struct planned_step {
    std::uint32_t base;
    __device__ std::int32_t i() const { return word(base); }
    __device__ std::int32_t head() const { return word(base + 4); }
    /// The key tile whose share of dQ is added before this one's; -1: none.
    __device__ std::int32_t before() const { return word(base + 8); }
    __device__ bool is_partial() const { return word(base + 12) > 0; }
    __device__ bool is_end() const { return word(base + 12) < 0; }
  };
  __device__ planned_step planned(std::uint32_t number) const { return {walk_ + 32 + number % 4 * 16}; }

  /// Numbers only order blocks: what each computes, and the order of every sum, are the key tile's own. Without query
  /// tiles nothing has cleared the count.
  __device__ void begin_walk(std::int64_t unit) const {
    std::int32_t const number = p_.q_length == 0 ? std::int32_t(unit) : std::int32_t(atomicAdd(p_.drawn, 1u));
    sm90::key_order::place const to = p_.order[number];
    std::int32_t const heads = std::int32_t(p_.a.k.size.heads), b = to.head / heads, h = to.head - b * heads;
    put_words(walk_, to.tile, b, h, 0);
    put_words(walk_ + 16, (h + 1) * p_.ratio - 1, tiles().q_tiles(), 0, 0);
  }
  __device__ void plan(std::uint32_t number) const {
    std::int32_t const b = batch(), own = j(), first = key_head() * p_.ratio, end = first + p_.ratio;
    std::int32_t head = word(walk_ + 16), i = word(walk_ + 20);
    if (i >= 0) advance(head, i, b, first, end, own);
    put_words(walk_ + 16, head, i, 0, 0);
    std::uint32_t const to = planned(number).base;
    if (i < 0) put_words(to, 0, 0, 0, -1);
    else
      put_words(to, i, head, previous_key_tile(p_.f, tiles(), b, head, i, own),
                cover_of(p_.f, tiles().tile(b, head, i, own)) == cover::partial);
  }
  /// To the next head of the group that visits the same query tile, else to the next lower tile that any of them does;
  /// i is -1 behind the end.
  __device__ void advance(std::int32_t& head, std::int32_t& i, std::int32_t b, std::int32_t first, std::int32_t end,
                          std::int32_t own) const {
    while (++head < end)
      if (cover_of(p_.f, tiles().tile(b, head, i, own)) != cover::empty) return;
    std::int32_t const above = i;
    i = -1;
    for (std::int32_t h = end; h-- > first;) {
      std::int32_t const below = previous_query_tile(p_.f, tiles(), b, h, above, own);
      if (below >= i) i = below, head = h;
    }
  }
  __device__ block tile_of(planned_step at) const { return tiles().tile(batch(), at.head(), at.i(), j()); }

  // Copies, one group each.

  __device__ void load_keys() const {
    std::int32_t const b = batch(), h = key_head();
    block const t = tiles().tile(b, 0, 0, j());
    int const valid = t.k_end - t.k_begin;
    gpu::copy_tile<op, threads, d>(k_, p_.a.k.row(b, t.k_begin, h), p_.a.k.stride.sequence, valid, p_.aligned_inputs);
    gpu::copy_tile<op, threads, d>(v_, p_.a.v.row(b, t.k_begin, h), p_.a.v.stride.sequence, valid, p_.aligned_inputs);
    gpu::cp_async_commit();
  }
  /// An empty group where the walk is at its end.
  __device__ __forceinline__ void load_q(std::uint32_t number) const {
    int const stage = number % 2;
    if (!planned(number).is_end()) load(planned(number), q_of(stage), p_.a.q, base_address(stage), p_.row.base);
    gpu::cp_async_commit();
  }
  __device__ __forceinline__ void load_d_o(std::uint32_t number) const {
    int const stage = number % 2;
    if (!planned(number).is_end()) load(planned(number), d_o_of(stage), p_.a.d_o, delta_address(stage), p_.row.delta);
    gpu::cp_async_commit();
  }
  __device__ __forceinline__ void load(planned_step at, query_tile to, view<E const> const& from, std::uint32_t to_row,
                                       float const* row) const {
    block const t = tile_of(at);
    gpu::copy_tile<op, threads, d>(to, from.row(t.batch, t.q_begin, t.head), from.stride.sequence, t.q_end - t.q_begin,
                                   p_.aligned_inputs);
    if (int const r = gpu::thread_index_anew(); r < size.columns)
      gpu::cp_async_4(to_row + r * 4, row + p_.row_index(t.batch, t.head, t.q_begin) + r);
  }
  __device__ query_tile q_of(int stage) const { return size.stages == 2 ? q_.stage(stage) : q_; }
  __device__ query_tile d_o_of(int stage) const { return size.stages == 2 ? d_o_.stage(stage) : d_o_; }
  __device__ std::uint32_t base_address(int stage) const { return rows_ + std::uint32_t(2 * stage * row_bytes); }
  __device__ std::uint32_t delta_address(int stage) const { return base_address(stage) + row_bytes; }

  // Rows that the mask hides become zeros before they meet dS and P: 0 times NaN is not 0.

  __device__ __forceinline__ void hide_keys() const {
    if constexpr (has_mask<F>) {
      int const r = gpu::thread_index_anew();
      bool const hidden = r < size.rows && is_hidden_key(r);
      gpu::cp_async_wait<2>();
      if (__syncthreads_or(hidden) && hidden) k_.zero_row(r);
    }
  }
  /// No query of the group's heads sees row r of this key tile, which exists.
  __device__ bool is_hidden_key(std::int32_t r) const {
    std::int32_t const b = batch(), k = j() * size.rows + r;
    if (k >= p_.k_length) return false;
    for (std::int32_t h = key_head() * p_.ratio; h < (key_head() + 1) * p_.ratio; ++h) {
      block const column = hull_of(p_.f, {b, h, 0, p_.q_length, k, k + 1});
      if (is_empty(column) || cover_of(p_.f, column) == cover::empty) continue;
      for (std::int32_t q = column.q_begin; q < column.q_end; ++q)
        if (keep(p_.f, {b, h, q, k})) return false;
    }
    return true;
  }
  /// A barrier, at which dO and Q have arrived; queries that see none of the tile's keys.
  __device__ __forceinline__ void hide_queries(std::uint32_t number, bool masked) const {
    if (!masked) {
      __syncthreads();
      return;
    }
    int const r = gpu::thread_index_anew(), stage = number % 2;
    block const t = tile_of(planned(number));
    bool const hidden = t.q_begin + r < t.q_end && sm90::sees_no_key(p_.f, t, t.q_begin + r);
    if (!__syncthreads_or(hidden)) return;
    if (hidden) q_of(stage).zero_row(r), d_o_of(stage).zero_row(r);
    __syncthreads();
  }

  // A step. With one stage dO of the next is on its way from dK on, Q during dQ.

  __device__ __forceinline__ void step(std::uint32_t number) {
    int const stage = number % 2;
    gpu::cp_async_wait<0>();
    hide_queries(number, has_mask<F> && planned(number).is_partial());
    if (threadIdx.x == 0) plan(number + 2);
    if constexpr (halves == 1) {
      load_q(number + 1);
      load_d_o(number + 1);
#pragma unroll
      for (int part = 0; part < pieces; ++part) {
        if (part > 0 && gpu::never(unsigned(part))) return;
        whole_piece(number, stage, part);
      }
      __syncthreads();
    } else {
      shared_piece(number);
    }
    if (p_.sums) add_to_sums(number);
  }

  /// A piece of one warp's own keys.
  __device__ __forceinline__ void whole_piece(std::uint32_t number, int stage, int part) {
    auto const q = q_of(stage).template rows_from<piece>(piece * part);
    auto const d_o = d_o_of(stage).template rows_from<piece>(piece * part);
    scores s, dp;
    raw_scores<F, m, n> raw;
    gpu::multiply_rows<op, unroll>(s, k_, first_row(), q);
    if (part == 0) pass_turn(number);
    bool const hides = apply_variant(s, raw, number, part);
    column_probabilities(s, p_.scale.factor, base_address(stage) + part * piece * 4);
    add_rounded(d_v_, s, d_o);
    gpu::multiply_rows<op, unroll_beside>(dp, v_, first_row(), d_o);
    score_gradients(s, dp, raw, number, part, hides);
    rounded ds;
    round(ds, dp);
    put(ds, ds_, part);
    add_fed(d_k_, ds, q);
  }

  /// A step's half of the queries, of keys that two warps share.
  __device__ __forceinline__ void shared_piece(std::uint32_t number) {
    int const part = half();
    score_tile const p_tile{ds_.base + score_tile::bytes};
    auto const rows_of = [&](query_tile const& x, int which) { return x.template rows_from<piece>(piece * which); };
    scores s, dp;
    raw_scores<F, m, n> raw;
    rounded fed;
    gpu::multiply_rows<op, unroll>(s, k_, first_row(), rows_of(q_, part));
    pass_turn(number);
    bool const hides = apply_variant(s, raw, number, part);
    column_probabilities(s, p_.scale.factor, base_address(number % 2) + part * piece * 4);
    round(fed, s);
    put(fed, p_tile, part);
    __syncthreads();
    add_fed(d_v_, fed, rows_of(d_o_, part));
    add_shared(d_v_, p_tile, part ^ 1, rows_of(d_o_, part ^ 1));
    gpu::multiply_rows<op, unroll_beside>(dp, v_, first_row(), rows_of(d_o_, part));
    score_gradients(s, dp, raw, number, part, hides);
    round(fed, dp);
    put(fed, ds_, part);
    __syncthreads();
    load_d_o(number + 1);
    add_fed(d_k_, fed, rows_of(q_, part));
    add_shared(d_k_, ds_, part ^ 1, rows_of(q_, part ^ 1));
    __syncthreads();
    load_q(number + 1);
  }

  __device__ block part_of(planned_step at, int part) const {
    block t = tile_of(at);
    t.q_begin += piece * part;
    return t;
  }
  /// True where some pair takes no part.
  __device__ __forceinline__ bool apply_variant(scores& s, raw_scores<F, m, n>& raw, std::uint32_t number,
                                                int part) const {
    block const own = part_of(planned(number), part);
    bool const partial = planned(number).is_partial();
    bool const ragged = own.k_end - own.k_begin < size.rows || own.q_end - own.q_begin < size.columns - piece * part;
    gpu::apply_variant<gpu::rows_are::keys>(s, raw.address(), p_.f, own, first_row(),
                                            partial ? cover::partial : cover::full, ragged, p_.scale);
    return (has_mask<F> && partial) || ragged;
  }

  /// dS^T = P^T (dP^T - delta), in place of dP^T.
  __device__ __forceinline__ void score_gradients(scores const& p, scores& dp, raw_scores<F, m, n> const& raw,
                                                  std::uint32_t number, int part, bool hides) const {
    if (hides) drop_masked(p, dp);
    column_score_gradients(p, dp, delta_address(number % 2) + part * piece * 4);
    if constexpr (has_score<F>)
      through_score<gpu::rows_are::keys>(dp, raw.s, p_.f, part_of(planned(number), part), first_row());
  }

  static __device__ __forceinline__ void round(rounded& to, scores const& from) {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int s = 0; s < n / op::c_tiles; ++s) to[i][s] = op::feed(&from[i][s * op::c_tiles]);
  }
  __device__ __forceinline__ void put(rounded const& from, score_tile to, int part) const {
    int const lane = gpu::lane_index_anew();
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int s = 0; s < n / op::c_tiles; ++s)
        op::store_a(lane, to, first_row() + 16 * i, piece * part + op::k * s, from[i][s]);
  }
  /// dV += P^T dO and dK += dS^T Q for the queries of a piece: A from this warp's registers, or from the tile that
  /// holds another warp's.
  template <class Tile>
  __device__ __forceinline__ void add_fed(key_gradient& to, rounded const& a, Tile b) const {
    gpu::add_product<op, n / op::c_tiles>(
        to, [&](int i, int s) { return a[i][s]; }, b, own_column());
  }
  template <class Tile>
  __device__ __forceinline__ void add_rounded(key_gradient& to, scores const& a, Tile b) const {
    rounded fed;
    round(fed, a);
    add_fed(to, fed, b);
  }
  template <class Tile>
  __device__ __forceinline__ void add_shared(key_gradient& to, score_tile a, int part, Tile b) const {
    gpu::add_product<op, n / op::c_tiles>(
        to,
        [&](int i, int s) { return op::load_a(gpu::lane_index(), a, first_row() + 16 * i, piece * part + op::k * s); },
        b, own_column());
  }

  // dQ. Each warp adds its share of a step to the sums when its turn has come, and passes the turn during the next
  // step.

  __device__ std::int64_t query_tile_index(planned_step at) const {
    return (std::int64_t(batch()) * p_.a.q.size.heads + at.head()) * tiles().q_tiles() + at.i();
  }
  __device__ std::uint32_t* turn_of(planned_step at) const { return p_.turns + query_tile_index(at) * warps + warp(); }

  /// After the share of the next earlier key tile that visits the same query tile.
  __device__ __forceinline__ void add_to_sums(std::uint32_t number) const {
    planned_step const at = planned(number);
    bool const leads = gpu::lane_index() == 0, first = at.before() < 0;
    std::uint32_t const peeked = leads && !first ? gpu::peek_turn(turn_of(at)) : 0;
#pragma unroll
    for (int part = 0; part < slabs; ++part) {
      int const row = query_row(), column = 64 * part + query_column();
      query_gradient share;
      gpu::clear<m, n>(share);
      if (column < width)
        gpu::add_product<op, size.rows / 16>(
            share, [&](int i, int s) { return op::load_a_columns(gpu::lane_index(), ds_, 16 * s, row + 16 * i); }, k_,
            column);
      if (part == 0 && leads && !first) gpu::await_turn(turn_of(at), std::uint32_t(at.before() + 1), peeked);
      __syncwarp();
      add_share(share, p_.sums + (query_tile_index(at) * slabs + part) * query_sums::part + warp() * query_sums::share,
                first);
    }
  }
  /// In the background, from shared memory: from registers a warp would hold up the loads of all others.
  __device__ __forceinline__ void add_share(query_gradient const& share, float* to, bool first) const {
    constexpr int bytes = query_sums::share * int(sizeof(float));
    int const lane = gpu::lane_index_anew();
    std::uint32_t const from = shares_ + std::uint32_t(warp() * bytes);
    if (lane == 0) gpu::bulk_wait_read();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float const(&x)[4] = share[i][j].x;
        gpu::store_shared_4(
            from + std::uint32_t(((j * m + i) * query_sums::piece + lane * query_sums::lane) * int(sizeof(float))),
            __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
      }
    __syncwarp();
    if (lane == 0) {
      gpu::async_proxy_fence();
      if (first) gpu::bulk_store(to, from, bytes);
      else gpu::bulk_add(to, from, bytes);
      gpu::bulk_commit();
    }
  }
  /// That of the step before `number`.
  __device__ __forceinline__ void pass_turn(std::uint32_t number) const {
    if (number == 0 || !p_.sums) return;
    planned_step const at = planned(number - 1);
    __syncwarp();
    if (gpu::lane_index_anew() == 0) {
      gpu::bulk_wait_written();
      gpu::pass_turn(turn_of(at), std::uint32_t(j() + 1));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish() const {
    std::int32_t const b = batch(), h = key_head();
    block const t = tiles().tile(b, 0, 0, j());
    auto const put = [&](view<G> const& to, key_gradient const& from, float scale) {
      float factor[m][2];
#pragma unroll
      for (int i = 0; i < m; ++i) factor[i][0] = factor[i][1] = scale;
      gpu::store_rows<d, G>(
          {to.row(b, t.k_begin, h), to.stride.sequence, t.k_end - t.k_begin, p_.aligned_outputs, p_.a.accumulate},
          first_row(), from, factor, own_column());
    };
    if (p_.a.d_k) put(p_.a.d_k, d_k_, p_.a.scale);
    if (p_.a.d_v) put(p_.a.d_v, d_v_, 1.f);
  }

  // Who does what: cheaper to compute again than to keep in registers.

  static __device__ int warp() { return gpu::thread_index_anew() / 32; }
  /// Of the warps that share keys, this one's half.
  static __device__ int half() { return warp() % halves; }
  static __device__ int first_row() { return warp() / halves * 16 * m; }
  static __device__ int own_column() { return halves == 1 ? 0 : half() * own_columns; }
  static __device__ int query_row() { return warp() / 2 * 16 * m; }
  static __device__ int query_column() { return warp() % 2 * 8 * n; }

  problem const& p_;
  key_tile k_, v_;
  query_tile q_, d_o_;
  score_tile ds_;
  std::uint32_t shares_, rows_, walk_;
  key_gradient d_k_, d_v_;
};

}  // namespace lanewise::sm80
