// The grid of cases that a backend has to pass, and its runner.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compare.hpp"
#include "problem.hpp"

namespace parity {

/// How the tensors of a case lie in memory. All but `dense` must give the bits that `dense` gives.
enum class placement {
  dense,           ///< [B, S, H, D] each
  heads_first,     ///< [B, H, S, D], as PyTorch's attention takes them
  sequence_first,  ///< [S, B, H, D]
  interleaved,     ///< q, k, v slices of one [B, S, 3, H, D] buffer
  padded,          ///< rows 24 elements longer than head_dim, NaN between them, first element off by one
  broadcast        ///< k and v the same for every batch element, by stride 0
};
char const* name_of(placement p);

/// B Hq/Hkv Sq Sk D.
struct dimensions {
  std::int64_t batch, heads, kv_heads, q, k;
  int head_dim;
};

struct grid_case {
  std::string name{};
  dimensions size{};
  lanewise::precision precision = lanewise::precision::f32;
  std::function<void(problem&)> variant{};  ///< switches masks and scores on
  lanewise::gradient_type gradient = lanewise::gradient_type::storage;
  lanewise::empty_lse empty_lse = lanewise::empty_lse::zero;
  parity::placement placement = parity::placement::dense;
  lanewise::cpu_isa isa = lanewise::cpu_isa::automatic;
  bool accumulate = false, d_lse = false;
  bool expanded = false;                      ///< reference by expanding the heads and folding the gradients
  bool dead_rows = false, dead_keys = false;  ///< the mask must leave some
  bool zero = false;                          ///< no pair at all: every output must be zero
};

std::vector<grid_case> grid_cases(device where);

struct grid_options {
  bool quick = false;   ///< leave out the cases of more than quick_limit pair products
  double upstream = 1;  ///< gradient of the loss; 0 makes every case vacuous
  parity::distribution distribution = distribution::normal;
  std::uint64_t seed = 1;
  int threads = 1;     ///< of the CPU: the engine's there, and always the reference's
  std::string only{};  ///< cases whose name contains this
  parity::device device = parity::device::cpu;
};
/// B Hq Sq Sk D of a quick case at most.
inline constexpr double quick_limit = 1.7e8;

/// What one case showed.
struct case_result {
  std::string name{}, sizes{};
  std::string arithmetic{};  ///< "bf16", "bf16>f32": precision, and f32 gradients
  std::vector<measured> rows{};
  std::vector<std::string> faults{};   ///< broken promises that no norm shows: bits that differ, zeros that are none
  std::string skipped{};               ///< why it did not run
  std::vector<std::string> kernels{};  ///< that ran
  std::int64_t dead_rows = 0, dead_keys = 0;
  double seconds = 0;

  verdict result() const;
};

case_result run_case(grid_case const& c, grid_options const& o, std::uint64_t seed);

/// The stock variants as the types they are, not switched.
std::vector<case_result> run_stock_masks(grid_options const& o, std::uint64_t seed);
std::vector<case_result> run_stock_scores(grid_options const& o, std::uint64_t seed);
/// Precisions that the CPU treats alike, and packed buffers.
std::vector<case_result> run_stock_storage(grid_options const& o, std::uint64_t seed);

/// Mistakes that the grid must notice: a zero upstream gradient, a wrong head mapping, a gradient off by 1%.
std::vector<case_result> run_meta_cases(grid_options const& o, std::uint64_t seed);

/// Runs everything, prints a row a case and the totals; returns the number of failures.
int run_grid(grid_options const& o);

/// Inputs of a case, filled from the seed.
problem problem_of(grid_case const& c, grid_options const& o, std::uint64_t seed);

/// k or v with a head for every query head: query head h takes head h / ratio, or h % kv_heads where `wrong`.
array expanded(array const& x, std::int64_t heads, bool wrong = false);
/// Reference of a problem through expanded heads, gradients folded back.
lanewise::reference::result expanded_reference(problem const& p, int threads, bool wrong = false);

std::string text_of(lanewise::precision p, lanewise::gradient_type g);
std::string text_of(dimensions const& d, lanewise::precision p, lanewise::gradient_type g);

}  // namespace parity
