#include "model.hpp"

#include <cmath>

#include "random.hpp"

namespace trainer {

parameter_layout::parameter_layout(model_shape const& s, adaptation const& how) : weight_layout(how, lm_sites) {
  embedding_ = full_.add("model.embed_tokens.weight", {s.vocabulary, s.hidden});
  for (std::int64_t i = 0; i < s.layers; ++i) add_layer(s, "model.layers." + std::to_string(i) + ".");
  final_norm_ = full_.add("model.norm.weight", {s.hidden});
  head_ = s.tied ? embedding_ : full_.add("lm_head.weight", {s.vocabulary, s.hidden});
}

void parameter_layout::add_layer(model_shape const& s, std::string const& at) {
  std::int64_t const q = s.q_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  layer_weights w{};
  w.input_norm = full_.add(at + "input_layernorm.weight", {s.hidden});
  w.qkv = add_projection(at, s.hidden, {{"q", q}, {"k", kv}, {"v", kv}});
  w.q_norm = full_.add(at + "self_attn.q_norm.weight", {s.head_dim});
  w.k_norm = full_.add(at + "self_attn.k_norm.weight", {s.head_dim});
  w.o = add_projection(at, q, {{"o", s.hidden}});
  w.mlp_norm = full_.add(at + "post_attention_layernorm.weight", {s.hidden});
  w.gate_up = add_projection(at, s.hidden, {{"gate", s.ffn}, {"up", s.ffn}});
  w.down = add_projection(at, s.ffn, {{"down", s.hidden}});
  layers_.push_back(w);
}

template <class T>
void initialise(parameter_layout const& layout, model_shape const& shape, std::uint64_t seed, T* weights) {
  double const residual = 1 / std::sqrt(2.0 * double(shape.layers));
  std::uint64_t index = 0;
  for (parameter const& p : layout.full().all()) {
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
  parameter_layout const& layout;
  weight_arrays<T> const& weights;
  T const* rotary;
  T* gradients = nullptr;

  /// [rows, columns]
  buffer<T> take(std::int64_t columns, char const* label) const { return elements(in.rows() * columns, label); }
  buffer<T> elements(std::int64_t count, char const* label) const { return memory.take<T>(count, label); }
  buffer<std::byte> scratch(std::size_t bytes) const { return memory.take<std::byte>(std::int64_t(bytes), "scratch"); }

  T const* weight(std::int64_t at) const { return weights.full + at; }
  /// Partial sums of a norm's gain, for which a frozen one has no use.
  buffer<T> partial(std::int64_t count) const {
    return layout.is_frozen() ? buffer<T>() : elements(partial_count(in.rows(), count), "partial");
  }

  projections<T> placed() const { return {op, memory, layout, weights, gradients}; }
  T* gradient(std::int64_t at) const { return placed().gradient(at); }
  void project(projection_index p, T const* x, T const* residual, T* y) const {
    placed().forward(p, in.rows(), x, residual, y);
  }
  void project_backward(projection_index p, T const* x, T const* d_y, T* d_x) const {
    placed().backward(p, in.rows(), x, d_y, d_x);
  }
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
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden, q_width = shape_.q_heads * shape_.head_dim;
  std::int64_t const qk_heads = shape_.q_heads + shape_.kv_heads;
  attention_site const site = this->site(s);
  attention_needs const needs = s.op.attention(site);

  t.x = std::move(x);
  t.normed = s.take(hidden, "normed");
  t.inverse = s.take(1, "inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, t.x, s.weight(at.input_norm), t.normed, t.inverse);
  t.qkv = s.take(shape_.all_heads() * shape_.head_dim, "qkv");
  s.project(at.qkv, t.normed, nullptr, t.qkv);
  t.qk = s.take(qk_heads * shape_.head_dim, "qk");
  t.head_inverse = s.take(qk_heads, "head_inverse");
  s.op.head_norm(heads(s), t.qkv, s.weight(at.q_norm), s.weight(at.k_norm), s.rotary, t.qk, t.head_inverse);
  t.o = s.take(q_width, "o");
  t.attention = s.elements(needs.saved, "attention");
  {
    buffer<std::byte> const scratch = s.scratch(needs.forward_scratch);
    s.op.attention_forward(site, views(s, t.qk, t.qkv),
                           head_view(s.in, t.o.get(), shape_.q_heads, 0, shape_.q_heads, shape_.head_dim), t.attention,
                           scratch);
  }
  t.middle = s.take(hidden, "middle");
  s.project(at.o, t.o, t.x, t.middle);

  t.mlp_normed = s.take(hidden, "mlp_normed");
  t.mlp_inverse = s.take(1, "mlp_inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, t.middle, s.weight(at.mlp_norm), t.mlp_normed, t.mlp_inverse);
  t.gate_up = s.take(2 * shape_.ffn, "gate_up");
  s.project(at.gate_up, t.mlp_normed, nullptr, t.gate_up);
  t.active = s.take(shape_.ffn, "active");
  s.op.swiglu(rows, shape_.ffn, t.gate_up, t.active);
  buffer<T> out = s.take(hidden, "x");
  s.project(at.down, t.active, t.middle, out);
  return out;
}

template <class T>
void language_model<T>::mlp_backward(scene const& s, std::int64_t layer, layer_tape<T>& t, T* d_x) const {
  layer_weights const& at = layout_->layer(layer);
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden;
  buffer<T> d_active = s.take(shape_.ffn, "d_active");
  s.project_backward(at.down, t.active, d_x, d_active);
  t.active = {};
  buffer<T> d_gate_up = s.take(2 * shape_.ffn, "d_gate_up");
  s.op.swiglu_backward(rows, shape_.ffn, t.gate_up, d_active, d_gate_up);
  t.gate_up = {};
  d_active = {};
  buffer<T> const d_normed = s.take(hidden, "d_mlp_normed");
  s.project_backward(at.gate_up, t.mlp_normed, d_gate_up, d_normed);
  buffer<T> const partial = s.partial(hidden);
  s.op.rms_norm_backward(rows, hidden, t.middle, s.weight(at.mlp_norm), t.mlp_inverse, d_normed, d_x,
                         s.gradient(at.mlp_norm), partial);
}

template <class T>
void language_model<T>::attention_backward(scene const& s, std::int64_t layer, layer_tape<T>& t, T* d_x) const {
  layer_weights const& at = layout_->layer(layer);
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const d = shape_.head_dim;
  attention_site const site = this->site(s);
  attention_needs const needs = s.op.attention(site);

  buffer<T> d_o = s.take(q * d, "d_o");
  s.project_backward(at.o, t.o, d_x, d_o);
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
    buffer<T> const partial = s.partial(2 * d);
    s.op.head_norm_backward(heads(s), t.qkv, s.weight(at.q_norm), s.weight(at.k_norm), s.rotary, t.head_inverse, d_qk,
                            d_qkv, s.gradient(at.q_norm), s.gradient(at.k_norm), partial);
  }
  buffer<T> const d_normed = s.take(hidden, "d_normed");
  s.project_backward(at.qkv, t.normed, d_qkv, d_normed);
  buffer<T> const partial = s.partial(hidden);
  s.op.rms_norm_backward(rows, hidden, t.x, s.weight(at.input_norm), t.inverse, d_normed, d_x,
                         s.gradient(at.input_norm), partial);
}

template <class T>
void language_model<T>::layer_backward(scene const& s, std::int64_t layer, layer_tape<T>& tape, T* d_x) const {
  mlp_backward(s, layer, tape, d_x);
  attention_backward(s, layer, tape, d_x);
  tape = {};
}

/// With every layer's tape for the backward; or with nothing left of it but what went in, in *kept.
template <class T>
buffer<T> language_model<T>::segment_forward(scene const& s, std::int64_t segment, buffer<T> x, buffer<T>* kept) {
  for (std::int64_t i = first_of(segment); i < first_of(segment + 1); ++i) {
    layer_tape<T> forgotten;
    x = layer_forward(s, i, std::move(x), kept ? forgotten : tapes_[std::size_t(i)]);
    if (kept && i == first_of(segment)) *kept = std::move(forgotten.x);
  }
  return x;
}

template <class T>
void language_model<T>::train(ops<T> const& op, step_memory& memory, token_batch const& in,
                              weight_arrays<T> const& weights, T const* rotary, T weight, T* gradients, T* loss) {
  scene const s{op, memory, in, *layout_, weights, rotary, gradients};
  std::int64_t const rows = in.rows(), hidden = shape_.hidden, vocabulary = shape_.vocabulary;
  T const* const head = s.weight(layout_->head());

  buffer<T> x = s.take(hidden, "x");
  op.embed(rows, hidden, in.tokens, s.weight(layout_->embedding()), x);
  for (std::int64_t i = 0; i < segments_ - 1; ++i) x = segment_forward(s, i, std::move(x), &kept_[std::size_t(i)]);
  x = segment_forward(s, segments_ - 1, std::move(x), nullptr);

  buffer<T> const d_x = s.take(hidden, "d_x");
  {
    buffer<T> const normed = s.take(hidden, "normed"), inverse = s.take(1, "inverse");
    op.rms_norm(rows, hidden, shape_.epsilon, x, s.weight(layout_->final_norm()), normed, inverse);
    buffer<T> const d_normed = s.take(hidden, "d_normed");
    {
      buffer<T> const logits = s.take(vocabulary, "logits");
      op.linear(rows, hidden, vocabulary, normed, head, nullptr, logits);
      op.cross_entropy(rows, vocabulary, in.targets, weight, logits, loss);
      op.linear_backward(rows, hidden, vocabulary, normed, head, logits, d_normed, s.gradient(layout_->head()));
    }
    buffer<T> const partial = s.partial(hidden);
    op.zero(rows * hidden, d_x);
    op.rms_norm_backward(rows, hidden, x, s.weight(layout_->final_norm()), inverse, d_normed, d_x,
                         s.gradient(layout_->final_norm()), partial);
  }
  x = {};
  for (std::int64_t segment = segments_; segment-- > 0;) {
    if (segment + 1 < segments_) segment_forward(s, segment, std::move(kept_[std::size_t(segment)]), nullptr);
    for (std::int64_t i = first_of(segment + 1); i-- > first_of(segment);)
      layer_backward(s, i, tapes_[std::size_t(i)], d_x);
  }
  if (!layout_->is_frozen()) op.embed_backward(rows, hidden, in.tokens, d_x, s.gradient(layout_->embedding()));
}

/// The final norm's output, which the logits are made of.
template <class T>
buffer<T> language_model<T>::forward(scene const& s) const {
  std::int64_t const rows = s.in.rows(), hidden = shape_.hidden;
  buffer<T> x = s.take(hidden, "x");
  s.op.embed(rows, hidden, s.in.tokens, s.weight(layout_->embedding()), x);
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    layer_tape<T> forgotten;
    x = layer_forward(s, i, std::move(x), forgotten);
  }
  buffer<T> normed = s.take(hidden, "normed");
  buffer<T> const inverse = s.take(1, "inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, x, s.weight(layout_->final_norm()), normed, inverse);
  return normed;
}

template <class T>
void language_model<T>::evaluate(ops<T> const& op, step_memory& memory, token_batch const& in,
                                 weight_arrays<T> const& weights, T const* rotary, T* loss) {
  scene const s{op, memory, in, *layout_, weights, rotary};
  buffer<T> const normed = forward(s), logits = s.take(shape_.vocabulary, "logits");
  op.linear(in.rows(), shape_.hidden, shape_.vocabulary, normed, s.weight(layout_->head()), nullptr, logits);
  op.cross_entropy(in.rows(), shape_.vocabulary, in.targets, T(1), logits, loss);
}

template <class T>
void language_model<T>::predict(ops<T> const& op, step_memory& memory, token_batch const& in, std::int64_t row,
                                weight_arrays<T> const& weights, T const* rotary, T* logits) {
  scene const s{op, memory, in, *layout_, weights, rotary};
  buffer<T> const normed = forward(s);
  op.linear(1, shape_.hidden, shape_.vocabulary, normed + row * shape_.hidden, s.weight(layout_->head()), nullptr,
            logits);
}

template void initialise(parameter_layout const&, model_shape const&, std::uint64_t, float*);
template void initialise(parameter_layout const&, model_shape const&, std::uint64_t, double*);
template class language_model<float>;
template class language_model<double>;

}  // namespace trainer
