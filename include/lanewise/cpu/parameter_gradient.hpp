// Gradients of a variant's parameters (bias, slopes, sink logits) on the CPU.
//
// A parameter over [batch, head, q, k] with broadcast dimensions gets d_p = sum over them of dS * d(score)/d(p). Each
// unit owns one tile of the parameter and walks the broadcast dimensions in ascending order, recomputing S and dP (two
// of the five products): no scratch grows with the sequence, and the order of every sum is fixed.
#pragma once

#include "backward.hpp"

namespace lanewise::cpu {

template <config C, tuning T, class F, template <config, int, int> class Operands, int I>
class parameter_gradient_kernel {
  using kernel_type = backward_kernel<C, T, F, Operands>;
  using room = typename kernel_type::room;
  static constexpr tile size = backward_tile<T>();

 public:
  /// One thread's sums [block_k][block_q], in f64: a slope's sum over a whole sequence cancels. Beside the backward's
  /// room.
  static std::size_t room_bytes() {
    return parameter_is_sink<I, F> ? 0 : std::size_t(size.block_k) * size.block_q * sizeof(double);
  }

  parameter_gradient_kernel(backward_args<C> const& a, F const& f, kernel_type const& kernel)
      : a_(a), f_(f), kernel_(kernel), to_(parameter_gradient<I>(f)) {}

  void operator()(thread_pool* pool, void* scratch) const {
    if (!to_) return;
    tiling const& t = kernel_.tiles();
    std::int64_t const q_tiles = to_.size[2] == 1 ? 1 : t.q_tiles(), k_tiles = to_.size[3] == 1 ? 1 : t.k_tiles();
    for_each_unit(pool, to_.size[0] * to_.size[1] * q_tiles * k_tiles, [&](int thread, std::int64_t u) {
      std::int32_t const j = std::int32_t(u % k_tiles), i = std::int32_t(u / k_tiles % q_tiles);
      std::int64_t const ph = u / (k_tiles * q_tiles) % to_.size[1], pb = u / (k_tiles * q_tiles) / to_.size[1];
      if constexpr (parameter_is_sink<I, F>) sink(pb, ph, i);
      else
        score_parameter(pb, ph, i, j, kernel_.room_of(thread),
                        reinterpret_cast<double*>(static_cast<std::byte*>(scratch) + thread * room_bytes()));
    });
  }

 private:
  struct range {
    std::int32_t begin, end;
  };
  /// Indices of a dimension of n that share index i of a parameter of this extent.
  static range shared_by(std::int64_t extent, std::int64_t i, std::int64_t n) {
    return extent == 1 ? range{0, std::int32_t(n)} : range{std::int32_t(i), std::int32_t(i + 1)};
  }

  void score_parameter(std::int64_t pb, std::int64_t ph, std::int32_t pi, std::int32_t pj, room r, double* sums) const {
    tiling const& t = kernel_.tiles();
    range const bs = shared_by(to_.size[0], pb, a_.q.size.batch), hs = shared_by(to_.size[1], ph, a_.q.size.heads);
    range const is = shared_by(to_.size[2], pi, t.q_tiles()), js = shared_by(to_.size[3], pj, t.k_tiles());
    std::memset(sums, 0, room_bytes());
    for (std::int32_t b = bs.begin; b < bs.end; ++b)
      for (std::int32_t h = hs.begin; h < hs.end; ++h)
        for (std::int32_t j = js.begin; j < js.end; ++j) {
          kernel_.load_keys(t.tile(b, h, 0, j), r);
          for (std::int32_t i = is.begin; i < is.end; ++i) {
            block const tile = t.tile(b, h, i, j);
            cover const c = cover_of(f_, tile);
            if (c == cover::empty) continue;
            kernel_.tile_gradients(tile, c, 1.f, r);
            add_tile(tile, r, sums);
          }
        }
    block const own = t.tile(0, 0, pi, pj);
    for (std::int32_t k = 0; k < (to_.size[3] == 1 ? 1 : own.k_end - own.k_begin); ++k)
      for (std::int32_t q = 0; q < (to_.size[2] == 1 ? 1 : own.q_end - own.q_begin); ++q)
        put(to_.at(pb, ph, own.q_begin + q, own.k_begin + k), sums[k * size.block_q + q]);
  }

  void add_tile(block const& tile, room const& r, double* sums) const {
    for (std::int32_t k = 0; k < tile.k_end - tile.k_begin; ++k)
      for (std::int32_t q = 0; q < tile.q_end - tile.q_begin; ++q) {
        float const d_s = r.d_scores[k * size.block_q + q];
        if (d_s == 0.f) continue;
        position const at{tile.batch, tile.head, tile.q_begin + q, tile.k_begin + k};
        sums[(to_.size[3] == 1 ? 0 : k) * size.block_q + (to_.size[2] == 1 ? 0 : q)] +=
            double(d_s) * parameter_factor<I>(f_, r.raw[k * size.block_q + q], at);
      }
  }

  /// A sink takes part in the sum alone: d_logit = - sum of P_sink * delta over the rows that share it.
  void sink(std::int64_t pb, std::int64_t ph, std::int32_t pi) const {
    tiling const& t = kernel_.tiles();
    range const bs = shared_by(to_.size[0], pb, a_.q.size.batch), hs = shared_by(to_.size[1], ph, a_.q.size.heads);
    block const own = t.tile(0, 0, pi, 0);
    bool const all = to_.size[2] == 1;
    if (all) {
      put(to_.at(pb, ph, 0, 0), sink_sum(bs, hs, {0, t.q}));
      return;
    }
    for (std::int32_t q = own.q_begin; q < own.q_end; ++q) put(to_.at(pb, ph, q, 0), sink_sum(bs, hs, {q, q + 1}));
  }

  double sink_sum(range bs, range hs, range qs) const {
    double sum = 0;
    for (std::int32_t b = bs.begin; b < bs.end; ++b)
      for (std::int32_t h = hs.begin; h < hs.end; ++h)
        for (std::int32_t q = qs.begin; q < qs.end; ++q)
          sum -= softmax::sink_probability(f_(row{b, h, q}), *a_.lse.row(b, q, h)) * kernel_.delta_of(b, h, q);
    return sum;
  }

  void put(float& to, double value) const { to = a_.accumulate ? to + float(value) : float(value); }

  backward_args<C> const& a_;
  F const& f_;
  kernel_type const& kernel_;
  parameter_view<float> to_;
};

}  // namespace lanewise::cpu
