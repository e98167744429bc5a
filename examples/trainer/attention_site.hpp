// A model's causal self-attention, behind one door: through lanewise, through the materialised softmax chain on BLAS
// that it replaces, or switched off. All three take the same views, so a run can be twinned by changing the kind alone.
//
//   flash    lanewise::forward and backward; keeps LSE [batch, sequence, q_heads]
//   exact    P = softmax(mask(scale Q K^T)), O = P V; keeps P [batch, q_heads, sequence, sequence]
//   ablated  O = 0 and no gradient: what the rest of the model learns alone
#pragma once

#include <cstddef>
#include <cstdint>
#include <lanewise/tensor.hpp>
#include <string>

#include "workers.hpp"

namespace trainer {

enum class attention_kind { flash, exact, ablated };

struct attention_shape {
  std::int64_t batch, sequence, q_heads, kv_heads, head_dim;
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

/// T is float; for double, where gradients are checked, there is no flash.
template <class T>
class attention_site {
 public:
  /// Throws attn-unsupported when there is no kernel for the shape: head_dim 32, 64 and 128 are compiled in for flash.
  attention_site(attention_kind kind, attention_shape shape, workers const& on);

  /// Elements that the forward leaves for the backward.
  std::int64_t saved_count() const;
  /// Bytes of scratch, aligned to lanewise::workspace_alignment.
  std::size_t forward_scratch() const;
  std::size_t backward_scratch() const;

  void forward(attention_inputs<T> const& in, lanewise::view<T> o, T* saved, void* scratch) const;
  void backward(attention_inputs<T> const& in, lanewise::view<T const> o, T const* saved, lanewise::view<T const> d_o,
                attention_gradients<T> const& out, void* scratch) const;

  /// Names of the kernels that run, forward and backward, for the log. Runs both once, on zeros of the site's shape:
  /// whatever the engine refuses is found before training (attn-unsupported). memory: probe_bytes().
  std::string probe(void* memory) const;
  std::size_t probe_bytes() const;

 private:
  attention_kind kind_;
  attention_shape shape_;
  workers on_;
};

}  // namespace trainer
