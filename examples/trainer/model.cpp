#include "model.hpp"

#include <cmath>

#include "random.hpp"

namespace trainer {

parameter_layout::parameter_layout(model_shape const& s) {
  std::int64_t const q = s.q_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  auto const add = [&](std::string name, std::vector<std::int64_t> shape) {
    return list_.add(std::move(name), std::move(shape));
  };
  add("model.embed_tokens.weight", {s.vocabulary, s.hidden});
  for (std::int64_t i = 0; i < s.layers; ++i) {
    std::string const at = "model.layers." + std::to_string(i) + ".";
    layer_weights w{};
    w.input_norm = add(at + "input_layernorm.weight", {s.hidden});
    w.qkv = add(at + "self_attn.q_proj.weight", {q, s.hidden});
    add(at + "self_attn.k_proj.weight", {kv, s.hidden});
    add(at + "self_attn.v_proj.weight", {kv, s.hidden});
    w.q_norm = add(at + "self_attn.q_norm.weight", {s.head_dim});
    w.k_norm = add(at + "self_attn.k_norm.weight", {s.head_dim});
    w.o = add(at + "self_attn.o_proj.weight", {s.hidden, q});
    w.mlp_norm = add(at + "post_attention_layernorm.weight", {s.hidden});
    w.gate_up = add(at + "mlp.gate_proj.weight", {s.ffn, s.hidden});
    add(at + "mlp.up_proj.weight", {s.ffn, s.hidden});
    w.down = add(at + "mlp.down_proj.weight", {s.hidden, s.ffn});
    layers_.push_back(w);
  }
  final_norm_ = add("model.norm.weight", {s.hidden});
}

template <class T>
void initialise(parameter_layout const& layout, model_shape const& shape, std::uint64_t seed, T* weights) {
  double const residual = 1 / std::sqrt(2.0 * double(shape.layers));
  std::uint64_t index = 0;
  for (parameter const& p : layout.all()) {
    random_numbers draw(seed, stream::weights, index++);
    bool const to_residual = p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight");
    for (std::int64_t i = 0; i < p.count; ++i)
      weights[p.offset + i] = p.is_matrix ? T(draw.normal() * 0.02 * (to_residual ? residual : 1)) : T(1);
  }
}

template <class T>
struct language_model<T>::scene {
  ops<T> const& op;
  step_memory& memory;
  token_batch const& in;
  T const *weights, *rotary;

  /// [rows, columns]
  buffer<T> take(std::int64_t columns, char const* label) const { return elements(in.rows() * columns, label); }
  buffer<T> elements(std::int64_t count, char const* label) const { return memory.take<T>(count, label); }
  buffer<std::byte> scratch(std::size_t bytes) const { return memory.take<std::byte>(std::int64_t(bytes), "scratch"); }
};

template <class T>
attention_site language_model<T>::site(scene const& s) const {
  return {attention_,
          {s.in.batch, s.in.sequence, s.in.sequence, shape_.q_heads, shape_.kv_heads, shape_.head_dim,
           attention_mask::causal()}};
}

template <class T>
head_shape language_model<T>::heads(scene const& s) const {
  return {s.in.rows(), s.in.sequence, shape_.q_heads, shape_.kv_heads, shape_.head_dim, shape_.epsilon};
}

/// [batch, sequence, heads, head_dim] out of rows that hold `row_heads` heads, from head `first` on.
template <class T>
lanewise::view<T> head_view(token_batch const& in, T* rows, std::int64_t row_heads, std::int64_t first,
                            std::int64_t heads, std::int64_t head_dim) {
  std::int64_t const stride = row_heads * head_dim;
  return {
      rows + first * head_dim, {in.batch, in.sequence, heads, head_dim}, {in.sequence * stride, stride, head_dim, 1}};
}

/// Queries and keys come normed and rotated from qk, values as they lie in qkv.
template <class T>
attention_inputs<T> language_model<T>::views(scene const& s, T const* qk, T const* qkv) const {
  std::int64_t const q = shape_.q_heads, kv = shape_.kv_heads, d = shape_.head_dim;
  return {head_view(s.in, qk, q + kv, 0, q, d), head_view(s.in, qk, q + kv, q, kv, d),
          head_view(s.in, qkv, q + 2 * kv, q + kv, kv, d)};
}

template <class T>
buffer<T> language_model<T>::layer_forward(scene const& s, std::int64_t layer, buffer<T> x, layer_tape<T>& t) const {
  layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden, q_width = shape_.q_heads * shape_.head_dim;
  std::int64_t const qk_heads = shape_.q_heads + shape_.kv_heads;
  attention_site const site = this->site(s);
  attention_needs const needs = s.op.attention(site);

  t.x = std::move(x);
  t.normed = s.take(hidden, "normed");
  t.inverse = s.take(1, "inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, t.x, w + at.input_norm, t.normed, t.inverse);
  t.qkv = s.take(shape_.all_heads() * shape_.head_dim, "qkv");
  s.op.linear(rows, hidden, shape_.all_heads() * shape_.head_dim, t.normed, w + at.qkv, nullptr, t.qkv);
  t.qk = s.take(qk_heads * shape_.head_dim, "qk");
  t.head_inverse = s.take(qk_heads, "head_inverse");
  s.op.head_norm(heads(s), t.qkv, w + at.q_norm, w + at.k_norm, s.rotary, t.qk, t.head_inverse);
  t.o = s.take(q_width, "o");
  t.attention = s.elements(needs.saved, "attention");
  {
    buffer<std::byte> const scratch = s.scratch(needs.forward_scratch);
    s.op.attention_forward(site, views(s, t.qk, t.qkv),
                           head_view(s.in, t.o.get(), shape_.q_heads, 0, shape_.q_heads, shape_.head_dim), t.attention,
                           scratch);
  }
  t.middle = s.take(hidden, "middle");
  s.op.linear(rows, q_width, hidden, t.o, w + at.o, t.x, t.middle);

  t.mlp_normed = s.take(hidden, "mlp_normed");
  t.mlp_inverse = s.take(1, "mlp_inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, t.middle, w + at.mlp_norm, t.mlp_normed, t.mlp_inverse);
  t.gate_up = s.take(2 * shape_.ffn, "gate_up");
  s.op.linear(rows, hidden, 2 * shape_.ffn, t.mlp_normed, w + at.gate_up, nullptr, t.gate_up);
  t.active = s.take(shape_.ffn, "active");
  s.op.swiglu(rows, shape_.ffn, t.gate_up, t.active);
  buffer<T> out = s.take(hidden, "x");
  s.op.linear(rows, shape_.ffn, hidden, t.active, w + at.down, t.middle, out);
  return out;
}

template <class T>
void language_model<T>::mlp_backward(scene const& s, std::int64_t layer, layer_tape<T>& t, T* d_x, T* gradients) const {
  layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden;
  buffer<T> d_active = s.take(shape_.ffn, "d_active");
  s.op.linear_backward(rows, shape_.ffn, hidden, t.active, w + at.down, d_x, d_active, gradients + at.down);
  t.active = {};
  buffer<T> d_gate_up = s.take(2 * shape_.ffn, "d_gate_up");
  s.op.swiglu_backward(rows, shape_.ffn, t.gate_up, d_active, d_gate_up);
  t.gate_up = {};
  d_active = {};
  buffer<T> const d_normed = s.take(hidden, "d_mlp_normed");
  s.op.linear_backward(rows, hidden, 2 * shape_.ffn, t.mlp_normed, w + at.gate_up, d_gate_up, d_normed,
                       gradients + at.gate_up);
  buffer<T> const partial = s.elements(partial_count(rows, hidden), "partial");
  s.op.rms_norm_backward(rows, hidden, t.middle, w + at.mlp_norm, t.mlp_inverse, d_normed, d_x, gradients + at.mlp_norm,
                         partial);
}

template <class T>
void language_model<T>::attention_backward(scene const& s, std::int64_t layer, layer_tape<T>& t, T* d_x,
                                           T* gradients) const {
  layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const d = shape_.head_dim;
  attention_site const site = this->site(s);
  attention_needs const needs = s.op.attention(site);

  buffer<T> d_o = s.take(q * d, "d_o");
  s.op.linear_backward(rows, q * d, hidden, t.o, w + at.o, d_x, d_o, gradients + at.o);
  buffer<T> const d_qkv = s.take(shape_.all_heads() * d, "d_qkv");
  {
    buffer<T> const d_qk = s.take((q + kv) * d, "d_qk");
    {
      buffer<std::byte> const scratch = s.scratch(needs.backward_scratch);
      s.op.attention_backward(
          site, views(s, t.qk, t.qkv), head_view<T const>(s.in, t.o, q, 0, q, d), t.attention,
          head_view<T const>(s.in, d_o, q, 0, q, d),
          {head_view(s.in, d_qk.get(), q + kv, 0, q, d), head_view(s.in, d_qk.get(), q + kv, q, kv, d),
           head_view(s.in, d_qkv.get(), q + 2 * kv, q + kv, kv, d)},
          scratch);
    }
    d_o = {};
    buffer<T> const partial = s.elements(partial_count(rows, 2 * d), "partial");
    s.op.head_norm_backward(heads(s), t.qkv, w + at.q_norm, w + at.k_norm, s.rotary, t.head_inverse, d_qk, d_qkv,
                            gradients + at.q_norm, gradients + at.k_norm, partial);
  }
  buffer<T> const d_normed = s.take(hidden, "d_normed");
  s.op.linear_backward(rows, hidden, shape_.all_heads() * d, t.normed, w + at.qkv, d_qkv, d_normed, gradients + at.qkv);
  buffer<T> const partial = s.elements(partial_count(rows, hidden), "partial");
  s.op.rms_norm_backward(rows, hidden, t.x, w + at.input_norm, t.inverse, d_normed, d_x, gradients + at.input_norm,
                         partial);
}

template <class T>
void language_model<T>::layer_backward(scene const& s, std::int64_t layer, layer_tape<T>& tape, T* d_x,
                                       T* gradients) const {
  mlp_backward(s, layer, tape, d_x, gradients);
  attention_backward(s, layer, tape, d_x, gradients);
  tape = {};
}

template <class T>
void language_model<T>::train(ops<T> const& op, step_memory& memory, token_batch const& in, T const* weights,
                              T const* rotary, T weight, T* gradients, T* loss) {
  scene const s{op, memory, in, weights, rotary};
  std::int64_t const rows = in.rows(), hidden = shape_.hidden, vocabulary = shape_.vocabulary;
  T const* const embedding = weights + layout_->embedding();

  buffer<T> x = s.take(hidden, "x");
  op.embed(rows, hidden, in.tokens, embedding, x);
  for (std::int64_t i = 0; i < shape_.layers; ++i) x = layer_forward(s, i, std::move(x), tapes_[std::size_t(i)]);

  buffer<T> const d_x = s.take(hidden, "d_x");
  {
    buffer<T> const normed = s.take(hidden, "normed"), inverse = s.take(1, "inverse");
    op.rms_norm(rows, hidden, shape_.epsilon, x, weights + layout_->final_norm(), normed, inverse);
    buffer<T> const d_normed = s.take(hidden, "d_normed");
    {
      buffer<T> const logits = s.take(vocabulary, "logits");
      op.linear(rows, hidden, vocabulary, normed, embedding, nullptr, logits);
      op.cross_entropy(rows, vocabulary, in.targets, weight, logits, loss);
      op.linear_backward(rows, hidden, vocabulary, normed, embedding, logits, d_normed,
                         gradients + layout_->embedding());
    }
    buffer<T> const partial = s.elements(partial_count(rows, hidden), "partial");
    op.zero(rows * hidden, d_x);
    op.rms_norm_backward(rows, hidden, x, weights + layout_->final_norm(), inverse, d_normed, d_x,
                         gradients + layout_->final_norm(), partial);
  }
  x = {};
  for (std::int64_t i = shape_.layers; i-- > 0;) layer_backward(s, i, tapes_[std::size_t(i)], d_x, gradients);
  op.embed_backward(rows, hidden, in.tokens, d_x, gradients + layout_->embedding());
}

/// The final norm's output, which the logits are made of.
template <class T>
buffer<T> language_model<T>::forward(scene const& s) const {
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden;
  buffer<T> x = s.take(hidden, "x");
  s.op.embed(rows, hidden, s.in.tokens, s.weights + layout_->embedding(), x);
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    layer_tape<T> forgotten;
    x = layer_forward(s, i, std::move(x), forgotten);
  }
  buffer<T> normed = s.take(hidden, "normed");
  buffer<T> const inverse = s.take(1, "inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, x, s.weights + layout_->final_norm(), normed, inverse);
  return normed;
}

template <class T>
void language_model<T>::evaluate(ops<T> const& op, step_memory& memory, token_batch const& in, T const* weights,
                                 T const* rotary, T* loss) {
  scene const s{op, memory, in, weights, rotary};
  buffer<T> const normed = forward(s), logits = s.take(shape_.vocabulary, "logits");
  op.linear(in.rows(), shape_.hidden, shape_.vocabulary, normed, weights + layout_->embedding(), nullptr, logits);
  op.cross_entropy(in.rows(), shape_.vocabulary, in.targets, T(1), logits, loss);
}

template <class T>
void language_model<T>::predict(ops<T> const& op, step_memory& memory, token_batch const& in, T const* weights,
                                T const* rotary, T* logits) {
  buffer<T> const normed = forward({op, memory, in, weights, rotary});
  op.linear(in.rows(), shape_.hidden, shape_.vocabulary, normed, weights + layout_->embedding(), nullptr, logits);
}

template void initialise(parameter_layout const&, model_shape const&, std::uint64_t, float*);
template void initialise(parameter_layout const&, model_shape const&, std::uint64_t, double*);
template class language_model<float>;
template class language_model<double>;

}  // namespace trainer
