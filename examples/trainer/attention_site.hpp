// A model's causal self-attention, as its code asks for it: through lanewise, through the materialised softmax chain on
// BLAS that it replaces, or switched off. All three take the same views, so a run can be twinned by changing the kind
// alone. ops.hpp runs it, on the device that the ops are for.
//
//   flash    lanewise::forward and backward; keeps LSE [batch, sequence, q_heads]
//   exact    P = softmax(mask(scale Q K^T)), O = P V; keeps P [batch, q_heads, sequence, sequence]
//   ablated  O = 0 and no gradient: what the rest of the model learns alone
#pragma once

#include <cstddef>
#include <cstdint>
#include <lanewise/tensor.hpp>

namespace trainer {

enum class attention_kind { flash, exact, ablated };

struct attention_shape {
  std::int64_t batch, sequence, q_heads, kv_heads, head_dim;
  constexpr lanewise::extents q() const { return {batch, sequence, q_heads, head_dim}; }
  constexpr lanewise::extents kv() const { return {batch, sequence, kv_heads, head_dim}; }
  constexpr lanewise::extents lse() const { return {batch, sequence, q_heads, 1}; }
  constexpr std::int64_t pairs() const { return batch * q_heads * sequence * sequence; }
};

struct attention_site {
  attention_kind kind;
  attention_shape shape;
};

/// What a site needs beside its inputs and results.
struct attention_needs {
  std::int64_t saved = 0;                                 ///< elements that the forward leaves for the backward
  std::size_t forward_scratch = 0, backward_scratch = 0;  ///< bytes, aligned to lanewise::workspace_alignment
};

/// Views [batch, sequence, heads, head_dim]; k and v have kv_heads heads, the others q_heads.
template <class T>
struct attention_inputs {
  lanewise::view<T const> q, k, v;
};
template <class T>
struct attention_gradients {
  lanewise::view<T> d_q, d_k, d_v;
};

}  // namespace trainer
