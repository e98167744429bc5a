// A model's attention, to itself or to another sequence, as its code asks for it: through lanewise, through the
// materialised softmax chain on BLAS that it replaces, or switched off. All three take the same views, so a run can be
// twinned by changing the kind alone. ops.hpp runs it, on the device that the ops are for.
//
//   flash    lanewise::forward and backward; keeps LSE [batch, queries, q_heads]
//   exact    P = softmax(mask(scale Q K^T)), O = P V; keeps P [batch, q_heads, queries, keys]
//   ablated  O = 0 and no gradient: what the rest of the model learns alone
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <lanewise/config.hpp>
#include <lanewise/tensor.hpp>
#include <lanewise/variants/key_padding.hpp>
#include <lanewise/variants/window.hpp>

namespace trainer {

enum class attention_kind { flash, exact, ablated };

/// Which keys a query may see: -left <= k - q <= right.
struct attention_mask {
  std::int32_t left = lanewise::unbounded, right = lanewise::unbounded;
  static constexpr attention_mask none() { return {}; }
  static constexpr attention_mask causal() { return {lanewise::unbounded, 0}; }
  static constexpr attention_mask window(std::int32_t radius) { return {radius, radius}; }
};

struct attention_shape {
  std::int64_t batch, queries, keys, q_heads, kv_heads, head_dim;
  attention_mask mask;
  constexpr lanewise::extents q() const { return {batch, queries, q_heads, head_dim}; }
  constexpr lanewise::extents kv() const { return {batch, keys, kv_heads, head_dim}; }
  constexpr lanewise::extents lse() const { return {batch, queries, q_heads, 1}; }
  constexpr std::int64_t pairs() const { return batch * q_heads * queries * keys; }
  /// Of pairs(), those that the mask lets see one another.
  constexpr std::int64_t live_pairs() const {
    std::int64_t live = 0;
    for (std::int64_t q = 0; q < queries; ++q) {
      std::int64_t const first = std::max<std::int64_t>(0, q - mask.left);
      std::int64_t const end = std::min<std::int64_t>(keys, q + mask.right + 1);
      live += std::max<std::int64_t>(0, end - first);
    }
    return batch * q_heads * live;
  }
};

/// lanewise::key_padding where there are lengths, every key where there are none.
struct real_keys {
  std::int32_t const* lengths = nullptr;

  LANEWISE_HD constexpr bool operator()(lanewise::position at) const {
    return !lengths || lanewise::key_padding{lengths}(at);
  }
  LANEWISE_HD constexpr lanewise::cover cover_of(lanewise::block b) const {
    return lengths ? lanewise::key_padding{lengths}.cover_of(b) : lanewise::cover::full;
  }
  LANEWISE_HD constexpr lanewise::block hull_of(lanewise::block b) const {
    return lengths ? lanewise::key_padding{lengths}.hull_of(b) : b;
  }
};

/// What runs: one variant for every site, so one instance a head dim.
using site_variant = lanewise::combine<lanewise::window, real_keys>;
constexpr site_variant variant_of(attention_mask m, std::int32_t const* key_lengths) {
  return {lanewise::window{m.left, m.right}, real_keys{key_lengths}};
}

/// How flash attention computes on a GPU. With bf16 operands its gradients come in f32 all the same.
constexpr lanewise::config site_config(int head_dim, lanewise::precision p) {
  return {.head_dim = head_dim,
          .precision = p,
          .gradient = p == lanewise::precision::bf16 ? lanewise::gradient_type::f32 : lanewise::gradient_type::storage};
}

struct attention_site {
  attention_kind kind;
  attention_shape shape;
};

/// What a site needs beside its inputs and results.
struct attention_needs {
  std::int64_t saved = 0;                                 ///< elements that the forward leaves for the backward
  std::size_t forward_scratch = 0, backward_scratch = 0;  ///< bytes, aligned to lanewise::workspace_alignment
};

/// Views [batch, queries or keys, heads, head_dim]; k and v have kv_heads heads, the others q_heads. A key that no
/// query sees gets gradient 0, a query that sees no key output 0.
template <class T>
struct attention_inputs {
  lanewise::view<T const> q, k, v;
  std::int32_t const* key_lengths = nullptr;  ///< [batch]: keys from there on are padding; null: there is none
};
template <class T>
struct attention_gradients {
  lanewise::view<T> d_q, d_k, d_v;
};

}  // namespace trainer
