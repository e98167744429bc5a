// dQ of one query tile (Dao 2023, algorithm 2, with the loops exchanged), on mma.sync.
//
// A block owns one query tile of one (batch, query head), a warp 16 m of its rows, and walks the key tiles in ascending
// order:
//   S = Q K^T,  P = 2^(S - LSE),  dP = dO V^T,  dS = P (dP - delta),  dQ += dS K
// Where shared memory has room for one key tile only, dP comes first: V of the next tile is then on its way during the
// other products, and K of it during dP.
//
// Where delta is not taken from a stored o (recomputes_delta), the same walk before every other sums it:
//   delta += rowsum(P dP)
#pragma once

#include "backward_problem.cuh"

namespace lanewise::sm80 {

enum class query_walk { gradient, delta };

template <config C, tuning T, class F, query_walk W = query_walk::gradient>
class query_gradient_kernel {
  using E = element<C>;
  using G = gradient<C>;
  using op = gpu::operation<C.precision>;
  static constexpr shape_of_tile size = query_gradient_shape<C, T, F>();
  static constexpr int d = C.head_dim, width = width_of<C>(), m = size.m, n = size.columns / 8;
  using query_tile = typename op::template tile<size.rows, width>;
  using key_tile = typename op::template streamed_tile<size.columns, width>;
  using live_columns = gpu::live_columns<size.warps()>;
  static constexpr bool one_stage = size.stages == 1;
  /// V and K come one by one, each while the other is in use: where copies do not pass through registers.
  static constexpr bool in_turns = one_stage && op::template transfer<size.threads(), d, key_tile>::registers == 0;
  static constexpr int unroll = in_turns ? 8 : 2;  ///< with 4 of two stages a mask at width 64 spills

 public:
  static constexpr char const* name = "sm80 backward, delta";
  static constexpr int threads = size.threads();
  static constexpr int shared_bytes =
      fits<2 * query_tile::bytes + size.stages * 2 * key_tile::bytes + live_columns::bytes>();

  static_assert(row_padding % size.rows == 0, "tuning: sm80_backward.block_q must divide 128");
  using problem = backward_problem<C, F>;
  static __host__ __device__ tiling tiles(problem const& p) { return p.tiles(size.rows, size.columns); }
  static std::int64_t units(problem const& p) { return p.a.q.size.batch * p.a.q.size.heads * tiles(p).q_tiles(); }
  /// Of a block without a mask: rows x columns x products.
  static std::int64_t work(problem const& p) { return std::int64_t(size.rows) * p.k_length * 3; }

  __device__ query_gradient_kernel(problem const& p, std::uint32_t shared)
      : p_(p), q_{shared}, d_o_{shared + query_tile::bytes}, k_{d_o_.base + query_tile::bytes},
        v_{k_.base + size.stages * key_tile::bytes}, live_{v_.base + size.stages * key_tile::bytes} {}

  __device__ void run(std::int64_t unit) {
    locate(unit);
    clear_sums();
    std::int32_t j = next_key_tile(p_.f, tiles(p_), b_, h_, i_, -1);
    bool const sees_keys = j < tiles(p_).k_tiles();
    if (sees_keys) {
      load_queries();
      load_v(j, 0);
      load_k(j, 0);
    }
    for (int stage = 0; j < tiles(p_).k_tiles(); stage = (stage + 1) % size.stages) {
      std::int32_t const after = next_key_tile(p_.f, tiles(p_), b_, h_, i_, j);
      arrive(after, stage);
      step(j, after, stage);
      __syncthreads();
      if (one_stage && !in_turns) load_v(after, 0);
      if (one_stage) load_k(after, 0);
      j = after;
    }
    if constexpr (W == query_walk::gradient) finish();
    else if (sees_keys) finish_delta();
  }

 private:
  __device__ void locate(std::int64_t unit64) {
    // A grid has fewer than 2^31 blocks; 64-bit divisions would be calls.
    std::uint32_t const unit = std::uint32_t(unit64), heads = std::uint32_t(p_.a.q.size.heads);
    std::uint32_t const count = tiles(p_).q_tiles();
    std::uint32_t const bh = unit / count;
    i_ = gpu::anew(std::int32_t(count - 1 - unit % count));
    b_ = gpu::anew(std::int32_t(bh / heads));
    h_ = gpu::anew(std::int32_t(bh % heads));
    kv_head_ = gpu::anew(h_ / p_.ratio);
  }

  __device__ void load_queries() {
    block const t = tiles(p_).tile(b_, h_, i_, 0);
    int const valid = t.q_end - t.q_begin;
    gpu::copy_tile<op, threads, d>(q_, p_.a.q.row(b_, t.q_begin, h_), p_.a.q.stride.sequence, valid, p_.aligned_inputs);
    gpu::copy_tile<op, threads, d>(d_o_, p_.a.d_o.row(b_, t.q_begin, h_), p_.a.d_o.stride.sequence, valid,
                                   p_.aligned_inputs);
    gpu::cp_async_commit();
    std::int64_t const from = p_.row_index(b_, h_, t.q_begin + first_row() + gpu::lane_index() / 4);
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        base_[i][half] = p_.row.base[from + 16 * i + 8 * half];
        delta_[i][half] = p_.row.delta[from + 16 * i + 8 * half];
      }
  }
  /// A tile of V or K, one group of copies. An empty one where j is past the last.
  __device__ void load_v(std::int32_t j, int stage) const { load(v_.stage(stage), p_.a.v, j); }
  __device__ void load_k(std::int32_t j, int stage) const { load(k_.stage(stage), p_.a.k, j); }
  __device__ void load(key_tile to, view<E const> const& from, std::int32_t j) const {
    if (j < tiles(p_).k_tiles()) {
      block const t = tiles(p_).tile(b_, h_, i_, j);
      gpu::copy_tile<op, threads, d>(to, from.row(gpu::anew(b_), t.k_begin, gpu::anew(kv_head_)), from.stride.sequence,
                                     t.k_end - t.k_begin, p_.aligned_inputs);
    }
    gpu::cp_async_commit();
  }

  /// Returns when the tile of `stage` is in shared memory for every warp, in turns only V; what comes next is on
  /// its way.
  __device__ __forceinline__ void arrive(std::int32_t after, int stage) const {
    if (!one_stage) {
      load_v(after, (stage + 1) % size.stages);
      load_k(after, (stage + 1) % size.stages);
    }
    gpu::cp_async_wait<in_turns ? 1 : one_stage ? 0 : 2>();
    __syncthreads();
  }

  __device__ __forceinline__ void step(std::int32_t j, std::int32_t after, int stage) {
    block const tile = tiles(p_).tile(b_, h_, i_, j);
    cover const c = cover_of(p_.f, tile);
    bool const ragged = tile.k_end - tile.k_begin < size.columns || tile.q_end - tile.q_begin < size.rows;
    key_tile const k = k_.stage(stage), v = v_.stage(stage);
    gpu::accumulators<m, n> s, dp;
    raw_scores<F, m, n> raw;

    if (in_turns) {
      gpu::multiply_rows<op, unroll>(dp, d_o_, first_row(), v);
      gpu::cp_async_wait<0>();
      __syncthreads();
      load_v(after, 0);
    }
    gpu::multiply_rows<op, unroll>(s, q_, first_row(), k);
    gpu::apply_variant<gpu::rows_are::queries>(s, raw.address(), p_.f, tile, first_row(), c, ragged, p_.scale);
    bool const masked = has_mask<F> && c == cover::partial;
    if (masked && W == query_walk::gradient) {
      live_.publish(gpu::live_columns_of(s));
      __syncthreads();
      if (live_.template any_dead<n>()) {
        gpu::zero_rows<threads>(k, [&](int row) { return live_.dead(row); });
        __syncthreads();
      }
    }
    probabilities(s);
    if (!in_turns) gpu::multiply_rows<op, unroll>(dp, d_o_, first_row(), v);
    if (masked || ragged) drop_masked(s, dp);
    if constexpr (W == query_walk::delta) {
      add_to_delta(s, dp);
    } else {
      score_gradients(s, dp);
      if constexpr (has_score<F>) through_score<gpu::rows_are::queries>(dp, raw.s, p_.f, tile, first_row());
      gpu::multiply_columns<op>(d_q_, dp, k);
    }
  }

  /// P = 2^(S - LSE)
  __device__ __forceinline__ void probabilities(gpu::accumulators<m, n>& s) const {
    gpu::for_each_element<m, n>(0, [&](int, int, int i, int j, int e) {
      s[i][j].x[e] = gpu::exp2_approximate(fmaf(s[i][j].x[e], p_.scale.factor, -base_[i][e / 2]));
    });
  }
  /// dS = P (dP - delta), in place of dP.
  __device__ __forceinline__ void score_gradients(gpu::accumulators<m, n> const& p, gpu::accumulators<m, n>& dp) const {
    gpu::for_each_element<m, n>(
        0, [&](int, int, int i, int j, int e) { dp[i][j].x[e] = p[i][j].x[e] * (dp[i][j].x[e] - delta_[i][e / 2]); });
  }

  /// This lane's share of rowsum(P dP), a tile's sum at a time.
  __device__ __forceinline__ void add_to_delta(gpu::accumulators<m, n> const& p, gpu::accumulators<m, n> const& dp) {
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float of_tile = 0.f;
#pragma unroll
        for (int j = 0; j < n; ++j)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) of_tile = fmaf(p[i][j].x[e], dp[i][j].x[e], of_tile);
        sum_[i][half] += of_tile;
      }
  }
  __device__ __forceinline__ void finish_delta() const {
    block const t = tiles(p_).tile(b_, h_, i_, 0);
    std::int64_t const from = p_.row_index(b_, h_, t.q_begin);
#pragma unroll
    for (int i = 0; i < m; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float const whole = delta_[i][half] + gpu::row_sum(sum_[i][half]);
        int const row = first_row() + 16 * i + 8 * half + gpu::lane_index() / 4;
        if (row < t.q_end - t.q_begin && gpu::lane_index() % 4 == 0) p_.row.delta[from + row] = whole;
      }
  }

  __device__ __forceinline__ void clear_sums() {
    if constexpr (W == query_walk::gradient) {
      gpu::clear<m, width / 8>(d_q_);
    } else {
#pragma unroll
      for (int i = 0; i < m; ++i) sum_[i][0] = sum_[i][1] = 0.f;
    }
  }
  __device__ __forceinline__ void finish() const {
    block const t = tiles(p_).tile(b_, h_, i_, 0);
    float factor[m][2];
#pragma unroll
    for (int i = 0; i < m; ++i) factor[i][0] = factor[i][1] = p_.a.scale;
    gpu::store_rows<d, G>({p_.a.d_q.row(b_, t.q_begin, h_), p_.a.d_q.stride.sequence, t.q_end - t.q_begin,
                           p_.aligned_outputs, p_.a.accumulate},
                          first_row(), d_q_, factor);
  }

  /// The first row of this warp; cheaper to compute again than to keep in a register.
  __device__ static int first_row() { return gpu::thread_index_anew() / 32 * 16 * m; }

  problem const& p_;
  query_tile q_, d_o_;
  key_tile k_, v_;
  live_columns live_;
  std::int32_t i_, b_, h_, kv_head_;
  float base_[m][2], delta_[m][2];
  gpu::accumulators<m, width / 8> d_q_;
  float sum_[m][2];  ///< rowsum(P dP)
};

}  // namespace lanewise::sm80
