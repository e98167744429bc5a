// dQ, dK and dV in one launch: a block walks for a key tile (backward_keys.cuh) or for a query tile
// (backward_queries.cuh). In two launches the second waits for the last block of the first, and where tiles are few or
// masks make them uneven each alone leaves multiprocessors idle. Every block then has the registers and the shared
// memory of the larger kind; on grids of many blocks that costs less than the wait (docs/performance.md).
#pragma once

#include "backward_keys.cuh"
#include "backward_queries.cuh"

namespace lanewise::sm80 {

template <config C, tuning T, class F>
class gradient_kernel {
  static constexpr bool apart = key_gradients_apart<C>;
  using value_kernel = key_gradient_kernel<C, T, F, false, true>;
  using key_kernel = key_gradient_kernel<C, T, F, true, !apart>;
  using query_kernel = query_gradient_kernel<C, T, F>;
  static constexpr int larger(int a, int b) { return a > b ? a : b; }

 public:
  static constexpr char const* name = "sm80 backward, dQ, dK and dV";
  static constexpr int threads = larger(key_kernel::threads, query_kernel::threads);
  static constexpr int shared_bytes = larger(key_kernel::shared_bytes, query_kernel::shared_bytes);

  static std::int32_t share_count(extents q, extents k, int multiprocessors) {
    return key_kernel::share_count(q, k, multiprocessors);
  }

  /// Blocks of each kind, in this order; the grid begins with block `first`, so that the longer walks start before the
  /// others, which fill the gaps.
  struct problem : key_problem<C, F> {
    std::int64_t of_values, of_keys, of_queries, first;
    explicit problem(key_problem<C, F> const& p)
        : key_problem<C, F>(p), of_values(apart && p.a.d_v ? key_kernel::units(p) : 0),
          of_keys(p.a.d_k || (!apart && p.a.d_v) ? key_kernel::units(p) : 0),
          of_queries(p.a.d_q ? query_kernel::units(p) : 0),
          first(key_kernel::work(p) < query_kernel::work(p) ? of_values + of_keys : 0) {}
  };
  static __host__ __device__ std::int64_t units(problem const& p) { return p.of_values + p.of_keys + p.of_queries; }

  __device__ gradient_kernel(problem const& p, std::uint32_t shared) : p_(p), shared_(shared) {}

  __device__ void run(std::int64_t unit) const {
    unit += p_.first;
    if (unit >= units(p_)) unit -= units(p_);
    if constexpr (apart)
      if (unit < p_.of_values) return walk<value_kernel>(unit);
    unit -= p_.of_values;
    if (unit < p_.of_keys) walk<key_kernel>(unit);
    else walk<query_kernel>(unit - p_.of_keys);
  }

 private:
  template <class K>
  __device__ void walk(std::int64_t unit) const {
    if (K::threads == threads || int(threadIdx.x) < K::threads) K(p_, shared_).run(unit);
  }
  problem const& p_;
  std::uint32_t shared_;
};

}  // namespace lanewise::sm80
