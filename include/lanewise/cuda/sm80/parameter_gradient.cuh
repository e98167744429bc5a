// Gradients of a variant's parameters (bias, slopes, sink logits), each sum in one fixed order.
//
// A parameter over [batch, head, q, k] with broadcast dimensions gets d_p = sum over them of dS d(score)/d(p), dS being
// P (dP - delta). A block owns one query tile and, where the parameter has a k, one key tile; it walks what the
// parameter shares in ascending order and recomputes S and dP. Where the parameter has no q the sums of the query tiles
// go to the workspace and a second kernel adds them in order, so that there is a block for every query tile.
//   d_logit = - sum over rows of P_sink delta                                                        for a sink
#pragma once

#include "backward_problem.cuh"

namespace lanewise::sm80 {

/// The indices of a dimension of n that share index i of a parameter of this extent.
struct index_range {
  std::int32_t begin, end;
};
__device__ inline index_range shared_by(std::int64_t extent, std::int64_t i, std::int64_t n) {
  return extent == 1 ? index_range{0, std::int32_t(n)} : index_range{std::int32_t(i), std::int32_t(i + 1)};
}

/// Sums of the query tiles: [tiles][batch][heads][k] of the parameter. Needed where q is shared.
inline std::int64_t parameter_partials(parameter_view<float> const& to, extents q, std::int32_t rows) {
  if (!to || to.size[2] != 1) return 0;
  return (q.sequence + rows - 1) / rows * to.size[0] * to.size[1] * to.size[3];
}

template <config C, tuning T, class F, int I>
class parameter_kernel {
  using E = element<C>;
  using op = gpu::operation<C.precision>;
  static constexpr int d = C.head_dim, width = width_of<C>(), n = 4;

 public:
  static constexpr int rows = width > 128 && sizeof(E) == 4 ? 16 : 64, columns = 8 * n;
  static constexpr char const* name = "sm80 backward, parameter gradient";

 private:
  using query_tile = typename op::template tile<rows, width>;
  using key_tile = typename op::template tile<columns, width>;
  static constexpr int sum_bytes = rows * columns * int(sizeof(float));

 public:
  static constexpr int threads = 2 * rows;
  static constexpr int shared_bytes =
      fits<2 * query_tile::bytes + (key_tile::bytes > sum_bytes ? key_tile::bytes : sum_bytes)>();

  struct problem : backward_problem<C, F> {
    parameter_view<float> to;
    float* partial;
    problem(backward_args<C> const& a, F const& f, row_values row, float* partial)
        : backward_problem<C, F>(a, f, row), to(parameter_gradient<I>(f)), partial(partial) {}
  };
  static __host__ __device__ tiling tiles(problem const& p) { return p.tiles(rows, columns); }
  static std::int64_t units(problem const& p) {
    return p.to.size[0] * p.to.size[1] * tiles(p).q_tiles() * (p.to.size[3] == 1 ? 1 : tiles(p).k_tiles());
  }

  __device__ parameter_kernel(problem const& p, std::uint32_t shared)
      : p_(p), q_{shared}, d_o_{shared + query_tile::bytes}, k_{d_o_.base + query_tile::bytes}, sums_{k_.base} {}

  __device__ void run(std::int64_t unit) {
    std::int32_t const key_tiles = tiles(p_).k_tiles(), own = p_.to.size[3] == 1 ? 1 : key_tiles;
    std::int32_t const pj = std::int32_t(unit % own), i = std::int32_t(unit / own % tiles(p_).q_tiles());
    std::int64_t const ph = unit / own / tiles(p_).q_tiles() % p_.to.size[1],
                       pb = unit / own / tiles(p_).q_tiles() / p_.to.size[1];
    row_ = int(threadIdx.x / 32) * 16;
    gpu::clear<1, n>(sum_);
    index_range const bs = shared_by(p_.to.size[0], pb, p_.a.q.size.batch),
                      hs = shared_by(p_.to.size[1], ph, p_.a.q.size.heads);
    index_range const js = p_.to.size[3] == 1 ? index_range{0, key_tiles} : index_range{pj, pj + 1};
    for (std::int32_t b = bs.begin; b < bs.end; ++b)
      for (std::int32_t h = hs.begin; h < hs.end; ++h) head(b, h, i, js);
    deliver(tiles(p_).tile(0, 0, i, pj), pb, ph, i);
  }

 private:
  /// Adds one (batch, head)'s share.
  __device__ void head(std::int32_t b, std::int32_t h, std::int32_t i, index_range js) {
    bool loaded = false;
    for (std::int32_t j = js.begin; j < js.end; ++j) {
      block const tile = tiles(p_).tile(b, h, i, j);
      cover const c = cover_of(p_.f, tile);
      if (c == cover::empty) continue;
      if (!loaded)
        load(q_, p_.a.q, b, tile.q_begin, h, tile.q_end - tile.q_begin),
            load(d_o_, p_.a.d_o, b, tile.q_begin, h, tile.q_end - tile.q_begin);
      loaded = true;
      add_tile(tile, c);
    }
  }
  template <class Tile>
  __device__ void load(Tile to, view<E const> const& from, std::int32_t b, std::int32_t s, std::int32_t h,
                       int valid) const {
    gpu::copy_tile<op, threads, d>(to, from.row(b, s, h), from.stride.sequence, valid, p_.aligned_inputs);
    gpu::cp_async_commit();
    gpu::cp_async_wait<0>();
    __syncthreads();
  }

  __device__ void add_tile(block const& tile, cover c) {
    bool const ragged = tile.k_end - tile.k_begin < columns || tile.q_end - tile.q_begin < rows;
    int const keys = tile.k_end - tile.k_begin;
    gpu::accumulators<1, n> s, dp, raw;
    load(k_, p_.a.k, tile.batch, tile.k_begin, tile.head / p_.ratio, keys);
    gpu::multiply_rows<op>(s, q_, row_, k_);
    __syncthreads();
    load(k_, p_.a.v, tile.batch, tile.k_begin, tile.head / p_.ratio, keys);
    gpu::multiply_rows<op>(dp, d_o_, row_, k_);
    __syncthreads();
    gpu::apply_variant<gpu::rows_are::queries>(s, &raw, p_.f, tile, row_, c, ragged, p_.scale);
    gpu::for_each_element<1, n>(row_, [&](int row, int column, int, int j, int e) {
      if (s[0][j].x[e] == -infinity) return;
      std::int64_t const at = p_.row_index(tile.batch, tile.head, tile.q_begin + row);
      float const prob = gpu::exp2_approximate(fmaf(s[0][j].x[e], p_.scale.factor, -p_.row.base[at]));
      float const ds = prob * (dp[0][j].x[e] - p_.row.delta[at]);
      if (ds != 0.f)
        sum_[0][j].x[e] +=
            ds * parameter_factor<I>(p_.f, raw[0][j].x[e], gpu::position_in<gpu::rows_are::queries>(tile, row, column));
    });
  }

  /// The block's sums, reduced over the rows and columns that the parameter shares, to where they belong.
  __device__ void deliver(block const& own, std::int64_t pb, std::int64_t ph, std::int32_t i) {
    gpu::for_each_element<1, n>(row_, [&](int row, int column, int, int j, int e) {
      gpu::store_shared_word(sums_ + (row * columns + column) * 4, bit_cast<std::uint32_t>(sum_[0][j].x[e]));
    });
    __syncthreads();
    bool const one_q = p_.to.size[2] == 1, one_k = p_.to.size[3] == 1;
    int const count_q = one_q ? 1 : own.q_end - own.q_begin, count_k = one_k ? 1 : own.k_end - own.k_begin;
    for (int x = int(threadIdx.x); x < count_q * count_k; x += threads) {
      int const r0 = one_q ? 0 : x / count_k, c0 = one_k ? 0 : x % count_k;
      float total = 0.f;
      for (int r = r0; r < (one_q ? rows : r0 + 1); ++r)
        for (int c = c0; c < (one_k ? columns : c0 + 1); ++c) total += gpu::load_shared(sums_ + (r * columns + c) * 4);
      std::int64_t const k = one_k ? 0 : own.k_begin + c0;
      if (one_q) p_.partial[((i * p_.to.size[0] + pb) * p_.to.size[1] + ph) * p_.to.size[3] + k] = total;
      else gpu::store_element(&p_.to.at(pb, ph, own.q_begin + r0, k), total, p_.a.accumulate);
    }
  }

  problem const& p_;
  query_tile q_, d_o_;
  key_tile k_;
  std::uint32_t sums_;
  int row_;
  gpu::accumulators<1, n> sum_;
};

/// Adds the sums of the query tiles in ascending order, one thread an element of the parameter.
struct parameter_sum_kernel {
  static constexpr char const* name = "sm80 backward, parameter sums";
  static constexpr int threads = 128, shared_bytes = 0;
  struct problem {
    parameter_view<float> to;
    float const* partial;
    std::int64_t tiles;
    bool accumulate;
  };
  static std::int64_t elements(problem const& p) { return p.to.size[0] * p.to.size[1] * p.to.size[3]; }
  static std::int64_t units(problem const& p) { return (elements(p) + threads - 1) / threads; }

  __device__ parameter_sum_kernel(problem const& p, std::uint32_t) : p_(p) {}
  __device__ void run(std::int64_t unit) const {
    std::int64_t const x = unit * threads + threadIdx.x, count = p_.to.size[0] * p_.to.size[1] * p_.to.size[3];
    if (x >= count) return;
    float total = 0.f;
    for (std::int64_t i = 0; i < p_.tiles; ++i) total += p_.partial[i * count + x];
    gpu::store_element(
        &p_.to.at(x / p_.to.size[3] / p_.to.size[1], x / p_.to.size[3] % p_.to.size[1], 0, x % p_.to.size[3]), total,
        p_.accumulate);
  }
  problem const& p_;
};

/// The gradient of a sink's logit. A block owns one element of the parameter; thread x adds rows x, x + 256, ... and
/// the threads' sums are added as a tree.
template <config C, class F, int I>
class sink_kernel {
 public:
  static constexpr char const* name = "sm80 backward, sink gradient";
  static constexpr int threads = 256, shared_bytes = threads * int(sizeof(float));
  struct problem : backward_problem<C, F> {
    parameter_view<float> to;
    problem(backward_args<C> const& a, F const& f, row_values row)
        : backward_problem<C, F>(a, f, row), to(parameter_gradient<I>(f)) {}
  };
  static std::int64_t units(problem const& p) { return p.to.size[0] * p.to.size[1] * p.to.size[2]; }

  __device__ sink_kernel(problem const& p, std::uint32_t shared) : p_(p), sums_(shared) {}
  __device__ void run(std::int64_t unit) const {
    std::int64_t const pq = unit % p_.to.size[2], ph = unit / p_.to.size[2] % p_.to.size[1],
                       pb = unit / p_.to.size[2] / p_.to.size[1];
    index_range const bs = shared_by(p_.to.size[0], pb, p_.a.q.size.batch),
                      hs = shared_by(p_.to.size[1], ph, p_.a.q.size.heads);
    index_range const qs = shared_by(p_.to.size[2], pq, p_.a.q.size.sequence);
    float sum = 0.f;
    for (std::int32_t b = bs.begin; b < bs.end; ++b)
      for (std::int32_t h = hs.begin; h < hs.end; ++h)
        for (std::int32_t q = qs.begin + std::int32_t(threadIdx.x); q < qs.end; q += threads) {
          float const weight = softmax::sink_probability(p_.f(row{b, h, q}), *p_.a.lse.row(b, q, h));
          sum -= weight * p_.row.delta[p_.row_index(b, h, q)];
        }
    gpu::store_shared_word(at(int(threadIdx.x)), bit_cast<std::uint32_t>(sum));
    for (int step = threads / 2; step > 0; step /= 2) {
      __syncthreads();
      if (int(threadIdx.x) < step) {
        sum += gpu::load_shared(at(int(threadIdx.x) + step));
        gpu::store_shared_word(at(int(threadIdx.x)), bit_cast<std::uint32_t>(sum));
      }
    }
    if (threadIdx.x == 0) gpu::store_element(&p_.to.at(pb, ph, pq, 0), sum, p_.a.accumulate);
  }

 private:
  __device__ std::uint32_t at(int i) const { return sums_ + i * 4; }
  problem const& p_;
  std::uint32_t sums_;
};

}  // namespace lanewise::sm80
