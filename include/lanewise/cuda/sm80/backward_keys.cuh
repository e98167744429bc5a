// dK and dV of one key tile (Dao 2023, algorithm 2, the outer loop), on mma.sync.
//
// A block owns one key tile of one (batch, key/value head), a warp 16 m of its rows, and walks the query tiles of every
// query head of the group in ascending order, or its share of them (key_shares.cuh):
//   S^T = K Q^T,  P^T = 2^(S^T - LSE),  dV += P^T dO,  dP^T = V dO^T,  dS^T = P^T (dP^T - delta),  dK += dS^T Q
// Scores are transposed so that P^T and dS^T are fed from the accumulators that hold them: no exchange between warps.
// Where shared memory has room for one query tile only, dP^T comes first: dO of the next tile is then on its way during
// dK += dS^T Q, and Q of it during dP^T.
#pragma once

#include "key_shares.cuh"

namespace lanewise::sm80 {

template <config C, tuning T, class F, bool want_k, bool want_v>
class key_gradient_kernel {
  using E = element<C>;
  using G = gradient<C>;
  using op = gpu::operation<C.precision>;
  static constexpr shape_of_tile size = key_gradient_shape<C, T, F>();
  static constexpr int d = C.head_dim, width = width_of<C>(), m = size.m, n = size.columns / 8;
  using key_tile = typename op::template tile<size.rows, width>;
  using query_tile = typename op::template streamed_tile<size.columns, width>;
  using live_columns = gpu::live_columns<size.warps()>;
  static constexpr bool one_stage = size.stages == 1;
  /// dO and Q come one by one, each while the other is in use: where copies do not pass through registers.
  static constexpr bool in_turns = one_stage && op::template transfer<size.threads(), d, query_tile>::registers == 0;
  /// dK and dV leave no registers for the addresses of a whole row: all of it in one stretch is 1% slower, with spills.
  static constexpr int unroll = in_turns ? 4 : 2;
  static constexpr int row_bytes = 2 * size.columns * int(sizeof(float));  ///< LSE and delta of a stage

 public:
  static constexpr int threads = size.threads();
  static constexpr int shared_bytes =
      fits<2 * key_tile::bytes + size.stages*(2 * query_tile::bytes + row_bytes) + live_columns::bytes>();

  static_assert(row_padding % size.columns == 0, "tuning: sm80_backward.block_q must divide 128");
  using problem = key_problem<C, F>;
  static __host__ __device__ tiling tiles(problem const& p) { return p.tiles(size.columns, size.rows); }
  static std::int64_t units(problem const& p) {
    return p.a.k.size.batch * p.a.k.size.heads * tiles(p).k_tiles() * p.shares.count;
  }
  static std::int32_t share_count(extents q, extents k, int multiprocessors) {
    tiling const t{std::int32_t(q.sequence), std::int32_t(k.sequence), size.columns, size.rows};
    std::int64_t const heads = k.batch * k.heads;
    return key_share_count(heads * t.k_tiles(), heads ? q.heads / k.heads * t.q_tiles() : 0, multiprocessors);
  }
  /// Of a block without a mask: rows x columns x products.
  static std::int64_t work(problem const& p) {
    return std::int64_t(size.rows) * p.ratio * p.q_length / p.shares.count * (1 + 2 * want_k + want_v);
  }

  __device__ key_gradient_kernel(problem const& p, std::uint32_t shared)
      : p_(p), k_{shared}, v_{shared + key_tile::bytes}, q_{v_.base + key_tile::bytes}, d_o_{q_.base +
                                                                                             size.stages *
                                                                                                 query_tile::bytes},
        rows_(d_o_.base + size.stages * query_tile::bytes), live_{rows_ + size.stages * row_bytes} {}

  __device__ void run(std::int64_t unit) {
    locate(unit);
    if (want_k) gpu::clear<m, width / 8>(d_k_);
    if (want_v) gpu::clear<m, width / 8>(d_v_);
    cursor at = next({kv_head_ * p_.ratio, -1}, share() + 1);
    if (!done(at)) {
      load_keys();
      load_d_o(at, 0);
      load_q(at, 0);
    }
    for (int stage = 0; !done(at); stage = (stage + 1) % size.stages) {
      cursor const after = next(at, p_.shares.count);
      arrive(after, stage);
      step(at, after, stage);
      __syncthreads();
      if (one_stage && !in_turns) load_d_o(after, 0);
      if (one_stage) load_q(after, 0);
      at = after;
    }
    finish();
  }

 private:
  /// The key tile, and the share above it: beside dK and dV a second register would spill. A share's number takes 5
  /// bits (key_share_count); of key tiles of 16 rows there are fewer than 2^27.
  static constexpr int share_bit = 27;
  __device__ std::int32_t j() const { return gpu::anew(place_) & ((1 << share_bit) - 1); }
  __device__ std::int32_t share() const { return std::int32_t(std::uint32_t(place_) >> share_bit); }

  /// A query tile of one of the group's heads.
  struct cursor {
    std::int32_t h, i;
  };
  /// So many visited tiles further: shares are dealt out in turn, so that all have as much to do, whatever the mask.
  __device__ cursor next(cursor c, std::int32_t steps) const {
    do {
      c.i = next_query_tile(p_.f, tiles(p_), b_, c.h, c.i, j());
      while (c.i == tiles(p_).q_tiles() && ++c.h < (kv_head_ + 1) * p_.ratio)
        c.i = next_query_tile(p_.f, tiles(p_), b_, c.h, -1, j());
    } while (--steps > 0 && !done(c));
    return c;
  }
  __device__ bool done(cursor c) const { return c.h >= (kv_head_ + 1) * p_.ratio; }

  /// The first key tile first: under a causal mask it is the longest.
  __device__ void locate(std::int64_t unit64) {
    // A grid has fewer than 2^31 blocks; 64-bit divisions would be calls.
    std::uint32_t const shares = std::uint32_t(p_.shares.count), unit = std::uint32_t(unit64) / shares;
    std::uint32_t const heads = std::uint32_t(p_.a.k.size.heads), count = tiles(p_).k_tiles();
    std::uint32_t const bh = unit / count;
    place_ = gpu::anew(std::int32_t(std::uint32_t(unit64) % shares << share_bit | unit % count));
    b_ = gpu::anew(std::int32_t(bh / heads));
    kv_head_ = std::int32_t(bh % heads);
  }

  __device__ void load_keys() const {
    block const t = tiles(p_).tile(b_, 0, 0, j());
    int const valid = t.k_end - t.k_begin;
    gpu::copy_tile<op, threads, d>(k_, p_.a.k.row(b_, t.k_begin, kv_head_), p_.a.k.stride.sequence, valid,
                                   p_.aligned_inputs);
    if (want_k)
      gpu::copy_tile<op, threads, d>(v_, p_.a.v.row(b_, t.k_begin, kv_head_), p_.a.v.stride.sequence, valid,
                                     p_.aligned_inputs);
    gpu::cp_async_commit();
  }
  /// A tile of dO or Q and its part of the row sums, one group of copies. An empty one where `at` is past the last.
  __device__ void load_d_o(cursor at, int stage) const {
    if (!done(at)) load(at, d_o_.stage(stage), p_.a.d_o, delta_address(stage), p_.row.delta);
    gpu::cp_async_commit();
  }
  __device__ void load_q(cursor at, int stage) const {
    if (!done(at)) load(at, q_.stage(stage), p_.a.q, base_address(stage), p_.row.base);
    gpu::cp_async_commit();
  }
  __device__ void load(cursor at, query_tile to, view<E const> const& from, std::uint32_t to_row,
                       float const* row) const {
    block const t = tiles(p_).tile(b_, at.h, at.i, j());
    gpu::copy_tile<op, threads, d>(to, from.row(gpu::anew(b_), t.q_begin, at.h), from.stride.sequence,
                                   t.q_end - t.q_begin, p_.aligned_inputs);
    if (int const r = gpu::thread_index_anew(); r < size.columns)
      gpu::cp_async_4(to_row + r * 4, row + p_.row_index(gpu::anew(b_), at.h, t.q_begin) + r);
  }
  __device__ std::uint32_t base_address(int stage) const { return rows_ + stage * row_bytes; }
  __device__ std::uint32_t delta_address(int stage) const { return base_address(stage) + row_bytes / 2; }

  /// Returns when the tile of `stage` is in shared memory for every warp, in turns only dO; what comes next is on
  /// its way.
  __device__ __forceinline__ void arrive(cursor after, int stage) const {
    if (!one_stage) {
      load_d_o(after, (stage + 1) % size.stages);
      load_q(after, (stage + 1) % size.stages);
    }
    gpu::cp_async_wait<in_turns ? 1 : one_stage ? 0 : 2>();
    __syncthreads();
  }

  __device__ __forceinline__ void step(cursor at, cursor after, int stage) {
    block const tile = tiles(p_).tile(b_, at.h, at.i, j());
    cover const c = cover_of(p_.f, tile);
    bool const ragged = tile.k_end - tile.k_begin < size.rows || tile.q_end - tile.q_begin < size.columns;
    query_tile const q = q_.stage(stage), d_o = d_o_.stage(stage);
    gpu::accumulators<m, n> s, dp;
    raw_scores<F, m, n> raw;

    if (in_turns) {
      if constexpr (want_k) gpu::multiply_rows<op, unroll>(dp, v_, first_row(), d_o);
      gpu::cp_async_wait<0>();
      __syncthreads();
    }
    gpu::multiply_rows<op, unroll>(s, k_, first_row(), q);
    gpu::apply_variant<gpu::rows_are::keys>(s, raw.address(), p_.f, tile, first_row(), c, ragged, p_.scale);
    bool const masked = has_mask<F> && c == cover::partial;
    if (masked) {
      live_.publish(gpu::live_columns_of(s));
      __syncthreads();
      if (live_.template any_dead<n>()) {
        gpu::zero_rows<threads>(q, [&](int row) { return live_.dead(row); });
        gpu::zero_rows<threads>(d_o, [&](int row) { return live_.dead(row); });
        __syncthreads();
      }
    }
    column_probabilities(s, p_.scale.factor, base_address(stage));
    if (want_v) gpu::multiply_columns<op>(d_v_, s, d_o);
    if constexpr (want_k) {
      if (!in_turns) gpu::multiply_rows<op, unroll>(dp, v_, first_row(), d_o);
      if (masked || ragged) drop_masked(s, dp);
      column_score_gradients(s, dp, delta_address(stage));
      if constexpr (has_score<F>) through_score<gpu::rows_are::keys>(dp, raw.s, p_.f, tile, first_row());
    }
    if (in_turns) {
      __syncthreads();
      load_d_o(after, 0);
    }
    if (want_k) gpu::multiply_columns<op>(d_k_, dp, q);
  }

  __device__ __forceinline__ void finish() const {
    if (p_.shares.count > 1) {
      std::int64_t const b = share() * p_.a.k.size.batch + b_;
      if (want_k && p_.a.d_k) put(p_.shares.d_k, b, d_k_, 1.f, true, false);
      if (want_v && p_.a.d_v) put(p_.shares.d_v, b, d_v_, 1.f, true, false);
    } else {
      if (want_k && p_.a.d_k) put(p_.a.d_k, b_, d_k_, p_.a.scale, p_.aligned_outputs, p_.a.accumulate);
      if (want_v && p_.a.d_v) put(p_.a.d_v, b_, d_v_, 1.f, p_.aligned_outputs, p_.a.accumulate);
    }
  }
  template <class X>
  __device__ __forceinline__ void put(view<X> const& to, std::int64_t b, gpu::accumulators<m, width / 8> const& from,
                                      float scale, bool aligned, bool accumulate) const {
    block const t = tiles(p_).tile(b_, 0, 0, j());
    float factor[m][2];
#pragma unroll
    for (int i = 0; i < m; ++i) factor[i][0] = factor[i][1] = scale;
    gpu::store_rows<d, X>(
        {to.row(b, t.k_begin, kv_head_), to.stride.sequence, t.k_end - t.k_begin, aligned, accumulate}, first_row(),
        from, factor);
  }

  /// The first row of this warp; cheaper to compute again than to keep in a register.
  __device__ static int first_row() { return gpu::thread_index_anew() / 32 * 16 * m; }

  problem const& p_;
  key_tile k_, v_;
  query_tile q_, d_o_;
  std::uint32_t rows_;
  live_columns live_;
  std::int32_t place_, b_, kv_head_;
  gpu::accumulators<m, width / 8> d_k_, d_v_;
};

}  // namespace lanewise::sm80
