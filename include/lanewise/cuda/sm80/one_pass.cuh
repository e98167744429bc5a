// The backward in one pass (Dao 2023, algorithm 2), on mma.sync: dK and dV of one key tile and its share of dQ, five
// products where the kernels of backward_keys.cuh and backward_queries.cuh need seven.
//
// A block owns one key tile of one (batch, key/value head) and walks the query tiles of every query head of the group
// downwards:
//   S^T = K Q^T,  P^T = 2^(S^T - LSE),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q
//   dQ += dS K, dS through shared memory
// Scores are transposed so that a warp feeds P^T and dS^T from the accumulators that hold them; where two warps share
// keys, each also reads the other's half from shared memory.
//
// Each warp adds its part of dQ to an f32 sum in the workspace, one key tile after the other in a fixed order
// (query_sums.hpp). The first to come writes instead of adding, so that nothing is cleared beforehand.
#pragma once

#include "../instruction/turn.cuh"
#include "../query_sums.hpp"
#include "backward_problem.cuh"

namespace lanewise::sm80 {

template <config C, class F>
class one_pass_kernel {
  using E = element<C>;
  using G = gradient<C>;
  using op = gpu::operation<C.precision>;
  static constexpr one_pass_shape size = one_pass_tile<C>;
  static constexpr int d = C.head_dim, width = width_of<C>(), halves = size.halves;
  static constexpr int warps = size.warps();
  /// A warp's pairs at a time: 16 m keys x 8 n queries.
  static constexpr int m = 2, n = 4, piece = 8 * n, pieces = size.columns / piece;
  /// Columns of dK and dV in a warp, and of dQ, whose 64 rows two warps share.
  static constexpr int own_columns = width / halves, query_columns = width / 2;
  static constexpr int unroll = 2;
  using key_tile = typename op::template tile<size.rows, width>;
  using query_tile = typename op::template tile<size.columns, width>;
  using score_tile = typename op::template tile<size.rows, size.columns>;
  using scores = gpu::accumulators<m, n>;
  using key_gradient = gpu::accumulators<m, own_columns / 8>;
  using query_gradient = gpu::accumulators<m, query_columns / 8>;
  /// P^T or dS^T of a piece, rounded.
  using rounded = typename op::fed[m][n / op::c_tiles];
  static constexpr int row_bytes = size.columns * int(sizeof(float));  ///< LSE or delta of a query tile
  static_assert(warps == 4 && size.columns == 64 && pieces == 2 && row_padding % size.columns == 0);

 public:
  static constexpr gpu::query_sums query_sums = size.sums();
  static constexpr char const* name = "sm80 backward, one pass";
  static constexpr int threads = 32 * warps;
  static constexpr int shared_bytes =
      fits<2 * key_tile::bytes + (2 + size.d_o_stages) * query_tile::bytes + halves * score_tile::bytes +
           2 * 2 * row_bytes + 16>();
  static_assert(size.rows <= threads && size.columns <= threads, "a thread for each row");

  struct problem : backward_problem<C, F> {
    gpu::key_order order;
    float* sums;           ///< query_sums of every query tile; null: dQ is not wanted
    std::uint32_t* turns;  ///< of every query tile and warp, 1 + the key tile added last; all 0 before the launch
    std::uint32_t* drawn;  ///< numbers drawn by blocks so far; 0 before the launch
  };
  static std::int64_t query_tiles(extents q) {
    return q.batch * q.heads * tiling{std::int32_t(q.sequence), 0, size.columns, size.rows}.q_tiles();
  }
  static std::int64_t turn_words(extents q) { return query_tiles(q) * warps + 1; }
  static problem problem_of(backward_args<C> const& a, F const& f, row_values row, float* sums, std::uint32_t* turns) {
    backward_problem<C, F> const base(a, f, row, size.columns, size.rows);
    std::int64_t const bytes_of_head = base.ratio * a.q.size.sequence * d * std::int64_t(2 * sizeof(E) + sizeof(float));
    return {base, gpu::key_order_of(base.tiles, a.k.size, bytes_of_head), sums, turns,
            turns + turn_words(a.q.size) - 1};
  }
  static std::int64_t units(problem const& p) { return p.order.count(); }

  __device__ one_pass_kernel(problem const& p, std::uint32_t shared)
      : p_(p), k_{shared}, v_{k_.base + key_tile::bytes}, q_{v_.base + key_tile::bytes},
        d_o_{q_.base + 2 * query_tile::bytes}, ds_{d_o_.base + size.d_o_stages * query_tile::bytes},
        rows_(ds_.base + halves * score_tile::bytes), number_(rows_ + 2 * 2 * row_bytes) {}

  __device__ void run(std::int64_t unit) {
    locate(draw(unit));
    gpu::clear<m, own_columns / 8>(d_k_);
    gpu::clear<m, own_columns / 8>(d_v_);
    cursor at = next({kv_head_ * p_.ratio, tiles().q_tiles()});
    if (!done(at)) {
      load_keys();
      load_q(at, 0);
      load_d_o(at, 0);
      hide_keys();
    }
    for (int stage = 0; !done(at); stage ^= 1) {
      cursor const after = next(at);
      step(at, after, stage);
      at = after;
    }
    finish();
  }

 private:
  /// p_.tiles in this kernel's constants: counting tiles is no division.
  __device__ tiling tiles() const { return {p_.tiles.q, p_.tiles.k, size.columns, size.rows}; }

  /// A query tile of one of the group's heads.
  struct cursor {
    std::int32_t h, i;
  };
  __device__ cursor next(cursor c) const {
    c.i = previous_query_tile(p_.f, tiles(), b_, c.h, c.i, j_);
    while (c.i < 0 && ++c.h < (kv_head_ + 1) * p_.ratio)
      c.i = previous_query_tile(p_.f, tiles(), b_, c.h, tiles().q_tiles(), j_);
    return c;
  }
  __device__ bool done(cursor c) const { return c.h >= (kv_head_ + 1) * p_.ratio; }

  /// Numbers only order blocks: what each computes, and the order of every sum, are the key tile's own. Without query
  /// tiles nothing has cleared the count.
  __device__ std::int32_t draw(std::int64_t unit) const {
    if (p_.tiles.q == 0) return std::int32_t(unit);
    if (threadIdx.x == 0) gpu::store_shared_word(number_, atomicAdd(p_.drawn, 1u));
    __syncthreads();
    return std::int32_t(gpu::load_shared_word(number_));
  }
  __device__ void locate(std::int32_t number) {
    gpu::key_order::place const to = p_.order[number];
    std::int32_t const heads = std::int32_t(p_.a.k.size.heads);
    j_ = gpu::anew(to.tile);
    b_ = gpu::anew(to.head / heads);
    kv_head_ = gpu::anew(to.head % heads);
  }

  // Copies, one group each.

  __device__ void load_keys() const {
    block const t = tiles().tile(b_, 0, 0, j_);
    int const valid = t.k_end - t.k_begin;
    gpu::copy_tile<op, threads, d>(k_, p_.a.k.row(b_, t.k_begin, kv_head_), p_.a.k.stride.sequence, valid,
                                   p_.aligned_inputs);
    gpu::copy_tile<op, threads, d>(v_, p_.a.v.row(b_, t.k_begin, kv_head_), p_.a.v.stride.sequence, valid,
                                   p_.aligned_inputs);
    gpu::cp_async_commit();
  }
  /// An empty group where `at` is past the last.
  __device__ __forceinline__ void load_q(cursor at, int stage) const {
    if (!done(at)) load(at, q_.stage(stage), p_.a.q, base_address(stage), p_.row.base);
    gpu::cp_async_commit();
  }
  __device__ __forceinline__ void load_d_o(cursor at, int stage) const {
    if (!done(at)) load(at, d_o_of(stage), p_.a.d_o, delta_address(stage), p_.row.delta);
    gpu::cp_async_commit();
  }
  __device__ __forceinline__ void load(cursor at, query_tile to, view<E const> const& from, std::uint32_t to_row,
                                       float const* row) const {
    block const t = tiles().tile(b_, at.h, at.i, j_);
    gpu::copy_tile<op, threads, d>(to, from.row(gpu::anew(b_), t.q_begin, at.h), from.stride.sequence,
                                   t.q_end - t.q_begin, p_.aligned_inputs);
    if (int const r = gpu::thread_index_anew(); r < size.columns)
      gpu::cp_async_4(to_row + r * 4, row + p_.row_index(gpu::anew(b_), at.h, t.q_begin) + r);
  }
  __device__ query_tile d_o_of(int stage) const { return size.d_o_stages == 2 ? d_o_.stage(stage) : d_o_; }
  __device__ std::uint32_t base_address(int stage) const { return rows_ + std::uint32_t(2 * stage * row_bytes); }
  __device__ std::uint32_t delta_address(int stage) const { return base_address(stage) + row_bytes; }

  // Rows that the mask hides become zeros before they meet dS and P: 0 times NaN is not 0.

  __device__ __forceinline__ void hide_keys() const {
    if constexpr (has_mask<F>) {
      int const r = gpu::thread_index_anew();
      bool const hidden =
          r < size.rows && no_head_sees(p_.f, tiles(), b_, kv_head_ * p_.ratio, (kv_head_ + 1) * p_.ratio,
                                        j_ * size.rows + r);
      gpu::cp_async_wait<2>();
      if (__syncthreads_or(hidden) && hidden) k_.zero_row(r);
    }
  }
  /// A barrier, at which dO and Q have arrived; queries that see none of the tile's keys.
  __device__ __forceinline__ void hide_queries(block const& t, bool masked, int stage) const {
    if (!masked) {
      __syncthreads();
      return;
    }
    int const r = gpu::thread_index_anew();
    bool const hidden = t.q_begin + r < t.q_end && sees_no_key(p_.f, t, t.q_begin + r);
    if (!__syncthreads_or(hidden)) return;
    if (hidden) q_.stage(stage).zero_row(r), d_o_of(stage).zero_row(r);
    __syncthreads();
  }

  // A step. With two stages of dO it is there together with Q; with one it is on its way during dK, dQ and the next S.

  __device__ __forceinline__ void step(cursor at, cursor after, int stage) {
    block const tile = tiles().tile(b_, at.h, at.i, j_);
    cover const c = cover_of(p_.f, tile);
    bool const ragged = tile.k_end - tile.k_begin < size.rows || tile.q_end - tile.q_begin < size.columns;
    bool const masked = has_mask<F> && c == cover::partial;
    gpu::cp_async_wait<halves == 1 ? 0 : 1>();
    if constexpr (halves == 1) {
      hide_queries(tile, masked, stage);
      load_q(after, stage ^ 1);
      load_d_o(after, stage ^ 1);
#pragma unroll
      for (int part = 0; part < pieces; ++part) {
        if (part > 0 && gpu::never(unsigned(part))) return;
        whole_piece(tile, c, ragged, masked, stage, part);
      }
      __syncthreads();
    } else {
      __syncthreads();
      load_q(after, stage ^ 1);
      shared_piece(tile, c, ragged, masked, after, stage);
    }
    if (p_.sums) {
      query_gradient d_q;
      gpu::clear<m, query_columns / 8>(d_q);
      int const row = query_row();
      gpu::add_product<op, size.rows / 16>(
          d_q, [&](int i, int s) { return op::load_a_columns(gpu::lane_index(), ds_, 16 * s, row + 16 * i); }, k_,
          query_column());
      add_to_sums(d_q, at);
    }
  }

  /// A piece of one warp's own keys.
  __device__ __forceinline__ void whole_piece(block const& tile, cover c, bool ragged, bool masked, int stage,
                                              int part) {
    auto const q = q_.stage(stage).template rows_from<piece>(piece * part);
    auto const d_o = d_o_of(stage).template rows_from<piece>(piece * part);
    scores s, dp;
    raw_scores<F, m, n> raw;
    block const own = part_of(tile, part);
    gpu::multiply_rows<op, unroll>(s, k_, first_row(), q);
    gpu::apply_variant<gpu::rows_are::keys>(s, raw.address(), p_.f, own, first_row(), c, ragged, p_.scale);
    probabilities(s, base_address(stage) + part * piece * 4);
    add_rounded(d_v_, s, d_o);
    gpu::multiply_rows<op, unroll>(dp, v_, first_row(), d_o);
    score_gradients(s, dp, raw, own, masked || ragged, delta_address(stage) + part * piece * 4);
    rounded ds;
    round(ds, dp);
    put(ds, ds_, part);
    add_fed(d_k_, ds, q);
  }

  /// A step's half of the queries, of keys that two warps share.
  __device__ __forceinline__ void shared_piece(block const& tile, cover c, bool ragged, bool masked, cursor after,
                                               int stage) {
    int const part = half();
    score_tile const p_tile{ds_.base + score_tile::bytes};
    auto const rows_of = [&](query_tile const& x, int which) { return x.template rows_from<piece>(piece * which); };
    query_tile const q = q_.stage(stage);
    scores s, dp;
    raw_scores<F, m, n> raw;
    block const own = part_of(tile, part);
    rounded fed;
    gpu::multiply_rows<op, unroll>(s, k_, first_row(), rows_of(q, part));
    gpu::apply_variant<gpu::rows_are::keys>(s, raw.address(), p_.f, own, first_row(), c, ragged, p_.scale);
    probabilities(s, base_address(stage) + part * piece * 4);
    round(fed, s);
    put(fed, p_tile, part);
    gpu::cp_async_wait<1>();
    hide_queries(tile, masked, stage);
    add_fed(d_v_, fed, rows_of(d_o_, part));
    add_shared(d_v_, p_tile, part ^ 1, rows_of(d_o_, part ^ 1));
    gpu::multiply_rows<op, unroll>(dp, v_, first_row(), rows_of(d_o_, part));
    score_gradients(s, dp, raw, own, masked || ragged, delta_address(stage) + part * piece * 4);
    round(fed, dp);
    put(fed, ds_, part);
    __syncthreads();
    load_d_o(after, stage ^ 1);
    add_fed(d_k_, fed, rows_of(q, part));
    add_shared(d_k_, ds_, part ^ 1, rows_of(q, part ^ 1));
  }

  static __device__ block part_of(block t, int part) {
    t.q_begin += piece * part;
    return t;
  }

  /// P^T = 2^(S^T - LSE), one LSE a column.
  __device__ __forceinline__ void probabilities(scores& s, std::uint32_t base) const {
    std::uint32_t const column = base + (gpu::lane_index_anew() & 3) * 8;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float2 const lse = gpu::load_shared_2(column + 32 * j);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[i][j].x[e] = gpu::exp2_approximate(fmaf(s[i][j].x[e], p_.scale.factor, e % 2 ? -lse.y : -lse.x));
    }
  }
  /// dS^T = P^T (dP^T - delta), in place of dP^T.
  __device__ __forceinline__ void score_gradients(scores const& p, scores& dp, raw_scores<F, m, n> const& raw,
                                                  block const& own, bool hides, std::uint32_t delta) const {
    if (hides) drop_masked(p, dp);
    std::uint32_t const column = delta + (gpu::lane_index_anew() & 3) * 8;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      float2 const of = gpu::load_shared_2(column + 32 * j);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e) dp[i][j].x[e] = p[i][j].x[e] * (dp[i][j].x[e] - (e % 2 ? of.y : of.x));
    }
    if constexpr (has_score<F>) through_score<gpu::rows_are::keys>(dp, raw.s, p_.f, own, first_row());
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
  /// dV += P^T dO and dK += dS^T Q for the queries of a piece: A from this warp's registers, or from the tile that holds
  /// another warp's.
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
        [&](int i, int s) {
          return op::load_a(gpu::lane_index(), a, first_row() + 16 * i, piece * part + op::k * s);
        },
        b, own_column());
  }

  /// This warp's part of dQ to its sum: after that of the next earlier key tile that visits the same query tile.
  __device__ __forceinline__ void add_to_sums(query_gradient const& d_q, cursor at) const {
    std::int64_t const tile =
        (std::int64_t(b_) * p_.a.q.size.heads + at.h) * tiles().q_tiles() + at.i;
    std::int32_t const before = previous_key_tile(p_.f, tiles(), b_, at.h, at.i, j_);
    std::uint32_t* const turn = p_.turns + tile * warps + gpu::thread_index_anew() / 32;
    float* const to = p_.sums + tile * query_sums.count() + query_row() / 16 * (32 * query_sums.lane_stride) +
                      gpu::lane_index() * query_sums.lane_stride;
    auto const place = [&](int i, int j) {
      int const block = query_column() / 8 + j;
      return to + block / 8 * query_sums.part + block % 8 * query_sums.block_stride +
             i * (32 * query_sums.lane_stride);
    };
    if (before < 0) {
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int j = 0; j < query_columns / 8; ++j) gpu::store_global_4(place(i, j), d_q[i][j].x);
    } else {
      if (gpu::lane_index() == 0) gpu::await_turn(turn, std::uint32_t(before + 1));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int j = 0; j < query_columns / 8; ++j) gpu::add_global_4(place(i, j), d_q[i][j].x);
    }
    __syncwarp();
    if (gpu::lane_index() == 0) gpu::pass_turn(turn, std::uint32_t(j_ + 1));
  }

  __device__ __forceinline__ void finish() const {
    block const t = tiles().tile(b_, 0, 0, j_);
    auto const put = [&](view<G> const& to, key_gradient const& from, float scale) {
      float factor[m][2];
#pragma unroll
      for (int i = 0; i < m; ++i) factor[i][0] = factor[i][1] = scale;
      gpu::store_rows<d, G>({to.row(b_, t.k_begin, kv_head_), to.stride.sequence, t.k_end - t.k_begin,
                             p_.aligned_outputs, p_.a.accumulate},
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
  static __device__ int query_column() { return warp() % 2 * query_columns; }

  problem const& p_;
  key_tile k_, v_;
  query_tile q_, d_o_;
  score_tile ds_;
  std::uint32_t rows_, number_;
  std::int32_t j_, b_, kv_head_;
  key_gradient d_k_, d_v_;
};

}  // namespace lanewise::sm80
