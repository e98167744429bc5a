// What a call computes (config) and how (tuning): both are values, so they can be compared, printed, swept in a table.
#pragma once

#include "precision.hpp"

#define LANEWISE_VERSION_MAJOR 0
#define LANEWISE_VERSION_MINOR 1
#define LANEWISE_VERSION_PATCH 0

namespace lanewise {

/// The type of d_q, d_k and d_v: the storage type, or f32 whatever the storage.
enum class gradient_type { storage, f32 };

/// LSE of a row that sees no key. `zero` is what a packed buffer holds; `minus_infinity` lets partial results be
/// merged. The backward accepts both from either.
enum class empty_lse { zero, minus_infinity };

/// What changes the result. Use it as a template argument: forward<config{.head_dim = 128}>(...).
struct config {
  int head_dim;        ///< 8 ... 256 in steps of 8
  int head_dim_v = 0;  ///< 0: the same as head_dim; other values are not supported yet
  int gqa_ratio = 0;   ///< query heads per key/value head; 0: taken from the tensors
  lanewise::precision precision = lanewise::precision::f32;
  gradient_type gradient = gradient_type::storage;
  lanewise::empty_lse empty_lse = lanewise::empty_lse::zero;
  bool operator==(config const&) const = default;
};

/// Which (lane, register) -> (row, column) map a tensor-core kernel is written on; `table`: the tuning table's choice.
enum class lane_map { table, m16n8k16, m16n8k8_tf32, wgmma_m64 };

/// One row of the tuning table: query and key rows of a tile, pipeline stages. A zero means the table's value.
struct tile {
  int block_q = 0;
  int block_k = 0;
  int stages = 0;
  lanewise::lane_map lane_map = lanewise::lane_map::table;
  bool operator==(tile const&) const = default;
};

/// What changes only speed and the order of rounding. Every field left at its default is the table's row.
struct tuning {
  tile cpu_forward{}, cpu_backward{};
  tile sm80_forward{}, sm80_backward{};
  tile sm90_forward{}, sm90_backward{};
  bool operator==(tuning const&) const = default;
};

/// Storage type of q, k, v, o, d_o.
template <config C>
using element = storage<C.precision>;

/// Type of d_q, d_k, d_v.
template <config C>
using gradient = std::conditional_t<C.gradient == gradient_type::f32, float, element<C>>;

/// delta = rowsum(dO o) would bring the 8 bits of a stored o into d_q and d_k. bf16_split takes it from its equal,
/// sum_j P_j (dO v_j), at the price of two more products.
template <config C>
inline constexpr bool recomputes_delta = C.precision == precision::bf16_split;

/// One sentence per rule. Every argument struct checks it, so that a file which sees only `extern template` is told
/// too.
template <config C>
constexpr bool check_config() {
  static_assert(C.head_dim >= 8 && C.head_dim <= 256 && C.head_dim % 8 == 0,
                "config: head_dim must be 8 ... 256 in steps of 8");
  static_assert(C.head_dim_v == 0 || C.head_dim_v == C.head_dim,
                "config: head_dim_v other than head_dim is not supported yet; leave it 0");
  static_assert(C.gqa_ratio >= 0,
                "config: gqa_ratio is the number of query heads per key/value head; 0 takes it from the tensors");
  return true;
}

/// 1/sqrt(d) at compile time: Newton's iteration y <- y (3 - d y^2) / 2, converged for d in 1 ... 65536.
constexpr float default_scale(int d) {
  double y = 1.0 / d;
  for (int i = 0; i < 64; ++i) y *= 1.5 - 0.5 * d * y * y;
  return float(y);
}

}  // namespace lanewise
