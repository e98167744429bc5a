// delta = rowsum(dO * O) - dLSE and the LSE in log2 units, one pass over O and dO before the backward (Dao 2023,
// algorithm 2, line 4). Eight lanes a row; a block does 32 rows of one (batch, head). Where delta is
// summed from P and dP instead (recomputes_delta), this pass leaves -dLSE of it.
#pragma once

#include "../instruction/dependent_launch.cuh"
#include "backward_problem.cuh"

namespace lanewise::sm80 {

template <config C>
class preprocess_kernel {
  using E = element<C>;
  static constexpr int d = C.head_dim, lanes_per_row = 8, chunk = 8;

 public:
  static constexpr char const* name = "sm80 backward, row sums";
  static constexpr int threads = 256, shared_bytes = 0;
  static constexpr int rows = threads / lanes_per_row, parts = int(row_padding) / rows;
  struct problem {
    view<E const> o, d_o;
    view<float const> lse, d_lse;
    row_values row;
    std::int64_t tiles;
    bool aligned;
    std::uint32_t* cleared = nullptr;  ///< words of the workspace that the kernels after this one find 0
    std::int64_t cleared_count = 0;
  };
  __host__ __device__ static std::int64_t units(problem const& p) {
    return p.o.size.batch * p.o.size.heads * p.tiles * parts;
  }

  __device__ preprocess_kernel(problem const& p, std::uint32_t) : p_(p) {}

  __device__ void run(std::int64_t unit) const {
    gpu::let_next_kernel_start();
    for (std::int64_t w = unit * threads + threadIdx.x; w < p_.cleared_count; w += units(p_) * threads)
      p_.cleared[w] = 0;
    std::int64_t const tile = unit / parts, bh = tile / p_.tiles, b = bh / p_.o.size.heads, h = bh % p_.o.size.heads;
    std::int64_t const q = tile % p_.tiles * row_padding + unit % parts * rows + int(threadIdx.x) / lanes_per_row;
    bool const inside = q < p_.o.size.sequence;
    float sum = inside && !recomputes_delta<C> ? dot(p_.o.row(b, q, h), p_.d_o.row(b, q, h)) : 0.f;
#pragma unroll
    for (int step = 1; step < lanes_per_row; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (int(threadIdx.x) % lanes_per_row != 0) return;
    std::int64_t const at = bh * p_.tiles * row_padding + q;
    p_.row.delta[at] = inside && p_.d_lse ? sum - *p_.d_lse.row(b, q, h) : sum;
    p_.row.base[at] = inside ? softmax::backward_base_of(*p_.lse.row(b, q, h)) : 0.f;
  }

 private:
  /// This lane's chunks of a row, dO as dP = dO V^T sees it: with both rounded alike, dP - delta keeps its bits where
  /// one key has all the weight. Where o is 0, as in an empty row, d_o does not matter, not even if it is NaN.
  __device__ float dot(E const* o, E const* d_o) const {
    float sum = 0.f;
    for (int c = int(threadIdx.x) % lanes_per_row * chunk; c < d; c += lanes_per_row * chunk) {
      E x[chunk], y[chunk];
      load(x, o + c);
      load(y, d_o + c);
#pragma unroll
      for (int i = 0; i < chunk; ++i) {
        float const value = to_float(x[i]);
        if (value != 0.f) sum = fmaf(value, gpu::operation<C.precision>::as_operand(to_float(y[i])), sum);
      }
    }
    return sum;
  }
  __device__ void load(E (&to)[chunk], E const* from) const {
    constexpr int per_load = 16 / int(sizeof(E));
    if (p_.aligned) {
#pragma unroll
      for (int i = 0; i < chunk; i += per_load)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<uint4 const*>(from + i);
    } else {
#pragma unroll
      for (int i = 0; i < chunk; ++i) to[i] = from[i];
    }
  }
  problem const& p_;
};

}  // namespace lanewise::sm80
