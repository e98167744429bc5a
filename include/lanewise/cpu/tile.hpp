// What the forward and the backward share: tile sizes, scratch layout, the variant on a tile of scores.
//
// Tiles of scores are kept transposed, S^T[key][query], so that the vector lanes are queries: the running softmax then
// needs no reduction across lanes, K and V are read as they lie (one element broadcast to all lanes), and only the
// query tile is ever transposed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "../attention.hpp"
#include "../schedule.hpp"
#include "micro_kernel.hpp"
#include "thread_pool.hpp"

namespace lanewise::cpu {

/// The tuning table. block_q is a multiple of row_multiple. Forward: S^T (16 KiB) stays in a 32 KiB first-level cache.
/// Backward: K, V, dK, dV of a key tile with Q, dO and their transposes take 448 KiB at head dim 128: half of a 1 MiB
/// second-level cache.
template <tuning T>
constexpr tile forward_tile() {
  constexpr tile t{.block_q = T.cpu_forward.block_q ? T.cpu_forward.block_q : 64,
                   .block_k = T.cpu_forward.block_k ? T.cpu_forward.block_k : 64};
  static_assert(t.block_q > 0 && t.block_q % row_multiple == 0, "tuning: cpu_forward.block_q must be a multiple of 16");
  static_assert(t.block_k > 0, "tuning: cpu_forward.block_k must be positive");
  return t;
}
template <tuning T>
constexpr tile backward_tile() {
  constexpr tile t{.block_q = T.cpu_backward.block_q ? T.cpu_backward.block_q : 64,
                   .block_k = T.cpu_backward.block_k ? T.cpu_backward.block_k : 128};
  static_assert(t.block_q > 0 && t.block_q % row_multiple == 0,
                "tuning: cpu_backward.block_q must be a multiple of 16");
  static_assert(t.block_k > 0, "tuning: cpu_backward.block_k must be positive");
  return t;
}

/// Bytes dealt out one after the other; with base null it only counts, so a size and a layout cannot differ.
class carve {
 public:
  explicit carve(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}
  template <class T>
  T* take(std::size_t count) {
    std::size_t const offset = used_;
    used_ += (count * sizeof(T) + workspace_alignment - 1) / workspace_alignment * workspace_alignment;
    return base_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

/// Which rows of a partial tile take part at all.
struct live_rows {
  bool* keys;
  bool* queries;
};

/// S^T in natural units becomes log2 units: score, then mask. `raw`, where given, keeps the scores before the variant's
/// score. Without a score operator S^T is in log2 units already and only the mask is applied.
template <class F>
void apply_variant(F const& f, block const& tile, cover c, float* s, std::ptrdiff_t row, float* raw, live_rows live) {
  int const keys = tile.k_end - tile.k_begin, queries = tile.q_end - tile.q_begin;
  if constexpr (has_score<F>) {
    for (int k = 0; k < keys; ++k)
      for (int q = 0; q < queries; ++q) {
        float& x = s[k * row + q];
        if (raw) raw[k * row + q] = x;
        x = score(f, x, {tile.batch, tile.head, tile.q_begin + q, tile.k_begin + k}) * log2_e;
      }
  }
  if constexpr (has_mask<F>) {
    if (c == cover::full) return;
    for (int q = 0; q < queries; ++q) live.queries[q] = false;
    for (int k = 0; k < keys; ++k) {
      bool any = false;
      for (int q = 0; q < queries; ++q) {
        bool const kept = keep(f, {tile.batch, tile.head, tile.q_begin + q, tile.k_begin + k});
        if (!kept) s[k * row + q] = -infinity;
        live.queries[q] |= kept;
        any |= kept;
      }
      live.keys[k] = any;
    }
  }
}

/// What Q is multiplied by before S: scores come out in natural units for a score operator, else in log2 units.
template <class F>
constexpr float query_factor(float scale) {
  return has_score<F> ? scale : scale * log2_e;
}

/// Runs work(thread, unit) for every unit, handing units out in ascending order.
template <class Work>
void for_each_unit(thread_pool* pool, std::int64_t units, Work const& work) {
  std::atomic<std::int64_t> next{0};
  auto const serve = [&](int thread) {
    for (std::int64_t u; (u = next.fetch_add(1, std::memory_order_relaxed)) < units;) work(thread, u);
  };
  if (pool && units > 1) pool->run(serve);
  else serve(0);
}

inline int threads_of(on_cpu on) { return on.pool ? on.pool->size() : 1; }

}  // namespace lanewise::cpu
