#include "dit_scene.hpp"

namespace trainer {
namespace {

/// Slots of a layer's six vectors.
enum slot : std::int64_t { self_shift, self_scale, self_gate, mlp_shift, mlp_scale, mlp_gate, slots };

/// [batch, length, heads, head_dim] out of rows that hold `row_heads` heads, from head `first` on.
template <class T>
lanewise::view<T> heads_of(std::int64_t batch, std::int64_t length, T* rows, std::int64_t row_heads, std::int64_t first,
                           std::int64_t heads, std::int64_t n) {
  return {rows + first * n, {batch, length, heads, n}, {length * row_heads * n, row_heads * n, n, 1}};
}

template <class T>
attention_inputs<T> self_views(dit_shape const& shape, dit_scene<T> const& s, dit_tape<T> const& t) {
  std::int64_t const q = shape.q_heads, kv = shape.kv_heads, d = shape.head_dim, all = shape.all_heads();
  bool const is_ace = shape.style == dit_style::ace;
  T const *const qkv = t.qkv, *const turned = is_ace ? t.qk.get() : t.qkv.get();
  std::int64_t const turned_heads = is_ace ? q + kv : all;
  return {heads_of(s.in.batch, s.length, turned, turned_heads, 0, q, d),
          heads_of(s.in.batch, s.length, turned, turned_heads, q, kv, d),
          heads_of(s.in.batch, s.length, qkv, all, q + kv, kv, d), s.in.key_lengths};
}

template <class T>
attention_inputs<T> cross_views(dit_shape const& shape, dit_scene<T> const& s, dit_tape<T> const& t) {
  std::int64_t const q = shape.q_heads, kv = shape.kv_heads, d = shape.head_dim, length = s.in.caption_length;
  T const *const queries = t.q_normed, *const keys = t.k_normed, *const rows = t.kv;
  return {heads_of(s.in.batch, s.length, queries, q, 0, q, d), heads_of(s.in.batch, length, keys, kv, 0, kv, d),
          heads_of(s.in.batch, length, rows, 2 * kv, kv, kv, d), s.in.caption_lengths};
}

}  // namespace

template <class T>
attention_site dit_model<T>::self_site(scene const& s, std::int64_t layer) const {
  bool const windowed = is_ace() && layer % 2 == 0;
  return {attention_,
          {s.in.batch, s.length, s.length, shape_.q_heads, shape_.kv_heads, shape_.head_dim,
           windowed ? attention_mask::window(std::int32_t(shape_.window)) : attention_mask::none()}};
}

template <class T>
attention_site dit_model<T>::cross_site(scene const& s) const {
  return {attention_,
          {s.in.batch, s.length, s.in.caption_length, shape_.q_heads, shape_.kv_heads, shape_.head_dim,
           attention_mask::none()}};
}

template <class T>
void dit_model<T>::norm(scene const& s, norm_site at, T const* x, T const* modulation, T* y, T* inverse) const {
  std::int64_t const hidden = shape_.hidden;
  T const* const w = s.weights;
  if (is_ace())
    s.dit.adaptive_norm(s.modulated(hidden, slots), shape_.epsilon, x, w + at.gain, modulation + at.shift * hidden,
                        modulation + at.scale * hidden, y, inverse);
  else s.dit.layer_norm(s.rows(), hidden, shape_.epsilon, x, w + at.gain, w + at.bias, y, inverse);
}

template <class T>
void dit_model<T>::norm_backward(scene const& s, norm_site at, T const* x, T const* modulation, T const* inverse,
                                 T const* d_y, T* d_x, T* d_modulation) const {
  std::int64_t const hidden = shape_.hidden;
  T const* const w = s.weights;
  if (is_ace()) {
    sequence_shape const shape = s.modulated(hidden, slots);
    buffer<T> const partial = s.take(shape.partial_count(3), "partial");
    s.dit.adaptive_norm_backward(shape, x, w + at.gain, modulation + at.scale * hidden, inverse, d_y, d_x,
                                 s.gradient(at.gain), d_modulation + at.shift * hidden,
                                 d_modulation + at.scale * hidden, partial);
  } else {
    buffer<T> const partial = s.partial(partial_count(s.rows(), 2 * hidden));
    s.dit.layer_norm_backward(s.rows(), hidden, x, w + at.gain, inverse, d_y, d_x, s.gradient(at.gain),
                              s.gradient(at.bias), partial);
  }
}

template <class T>
buffer<T> dit_model<T>::self_attention(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const {
  dit_layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const hidden = shape_.hidden, d = shape_.head_dim, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const rows = s.rows();
  t.normed = s.take(rows * hidden, "normed");
  t.inverse = s.take(rows * (is_ace() ? 1 : 2), "inverse");
  norm(s, {at.self_norm, at.self_bias, self_shift, self_scale}, x, t.modulation, t.normed, t.inverse);

  head_shape const heads{rows, s.length, q, kv, d, shape_.epsilon};
  t.qkv = s.take(rows * shape_.all_heads() * d, "qkv");
  s.placed.forward(at.qkv, rows, t.normed, nullptr, t.qkv);
  if (is_ace()) {
    t.qk = s.take(rows * (q + kv) * d, "qk");
    t.head_inverse = s.take(rows * (q + kv), "head_inverse");
    s.op.head_norm(heads, t.qkv, w + at.q_norm, w + at.k_norm, s.rotary, t.qk, t.head_inverse);
  } else {
    s.dit.rotate(heads, shape_.rotated, s.rotary, false, t.qkv);
  }
  attention_site const site = self_site(s, layer);
  attention_needs const needs = s.op.attention(site);
  t.o = s.take(rows * q * d, "o");
  t.saved = s.take(needs.saved, "attention");
  {
    buffer<std::byte> const scratch = s.scratch(needs.forward_scratch);
    s.op.attention_forward(site, self_views(shape_, s, t), heads_of(s.in.batch, s.length, t.o.get(), q, 0, q, d),
                           t.saved, scratch);
  }
  buffer<T> y = s.take(rows * hidden, "middle");
  if (is_ace()) {
    t.attended = s.take(rows * hidden, "attended");
    s.placed.forward(at.o, rows, t.o, nullptr, t.attended);
    s.dit.gated_add(s.modulated(hidden, slots), x, t.attended, t.modulation + self_gate * hidden, y);
  } else {
    s.placed.forward(at.o, rows, t.o, x, y);
  }
  return y;
}

template <class T>
buffer<T> dit_model<T>::cross_attention(scene const& s, std::int64_t layer, dit_tape<T>& t) const {
  dit_layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const hidden = shape_.hidden, d = shape_.head_dim, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const rows = s.rows(), caption_rows = s.caption_rows();
  t.cross_normed = s.take(rows * hidden, "cross_normed");
  t.cross_inverse = s.take(rows, "cross_inverse");
  s.op.rms_norm(rows, hidden, shape_.epsilon, t.middle, w + at.cross_norm, t.cross_normed, t.cross_inverse);
  t.q = s.take(rows * q * d, "cross_q");
  s.placed.forward(at.cross_q, rows, t.cross_normed, nullptr, t.q);
  t.q_normed = s.take(rows * q * d, "cross_q_normed");
  t.q_inverse = s.take(rows * q, "cross_q_inverse");
  s.op.head_norm({rows, s.length, q, 0, d, shape_.epsilon}, t.q, w + at.cross_q_norm, w + at.cross_k_norm, nullptr,
                 t.q_normed, t.q_inverse);
  t.kv = s.take(caption_rows * 2 * kv * d, "cross_kv");
  s.placed.forward(at.cross_kv, caption_rows, s.caption, nullptr, t.kv);
  t.k_normed = s.take(caption_rows * kv * d, "cross_k_normed");
  t.k_inverse = s.take(caption_rows * kv, "cross_k_inverse");
  s.op.head_norm({caption_rows, s.in.caption_length, 0, kv, d, shape_.epsilon}, t.kv, w + at.cross_q_norm,
                 w + at.cross_k_norm, nullptr, t.k_normed, t.k_inverse);
  attention_site const site = cross_site(s);
  attention_needs const needs = s.op.attention(site);
  t.cross_o = s.take(rows * q * d, "cross_o");
  t.cross_saved = s.take(needs.saved, "cross_attention");
  {
    buffer<std::byte> const scratch = s.scratch(needs.forward_scratch);
    s.op.attention_forward(site, cross_views(shape_, s, t), heads_of(s.in.batch, s.length, t.cross_o.get(), q, 0, q, d),
                           t.cross_saved, scratch);
  }
  buffer<T> y = s.take(rows * hidden, "crossed");
  s.placed.forward(at.cross_o, rows, t.cross_o, t.middle, y);
  return y;
}

template <class T>
buffer<T> dit_model<T>::mlp(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const {
  dit_layer_weights const& at = layout_->layer(layer);
  std::int64_t const hidden = shape_.hidden, rows = s.rows();
  t.mlp_normed = s.take(rows * hidden, "mlp_normed");
  t.mlp_inverse = s.take(rows * (is_ace() ? 1 : 2), "mlp_inverse");
  norm(s, {at.mlp_norm, at.mlp_bias, mlp_shift, mlp_scale}, x, t.modulation, t.mlp_normed, t.mlp_inverse);
  t.gate_up = s.take(rows * 2 * shape_.ffn, "gate_up");
  s.placed.forward(at.gate_up, rows, t.mlp_normed, nullptr, t.gate_up);
  t.active = s.take(rows * shape_.ffn, "active");
  s.op.swiglu(rows, shape_.ffn, t.gate_up, t.active);
  buffer<T> y = s.take(rows * hidden, "x");
  if (is_ace()) {
    t.mlp_out = s.take(rows * hidden, "mlp_out");
    s.placed.forward(at.down, rows, t.active, nullptr, t.mlp_out);
    s.dit.gated_add(s.modulated(hidden, slots), x, t.mlp_out, t.modulation + mlp_gate * hidden, y);
  } else {
    s.placed.forward(at.down, rows, t.active, x, y);
  }
  return y;
}

template <class T>
buffer<T> dit_model<T>::layer_forward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t) const {
  if (!is_ace()) {
    t.middle = self_attention(s, layer, x, t);
    return mlp(s, layer, t.middle, t);
  }
  std::int64_t const width = slots * shape_.hidden;
  t.modulation = s.take(s.in.batch * width, "modulation");
  s.op.add_columns(s.in.batch, width, T(1), s.projection, width, T(0), t.modulation, width);
  s.dit.add_row(s.in.batch, width, s.weights + layout_->layer(layer).table, t.modulation);
  t.middle = self_attention(s, layer, x, t);
  t.crossed = cross_attention(s, layer, t);
  return mlp(s, layer, t.crossed, t);
}

template <class T>
void dit_model<T>::mlp_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x,
                                T* d_modulation) const {
  dit_layer_weights const& at = layout_->layer(layer);
  std::int64_t const hidden = shape_.hidden, rows = s.rows();
  sequence_shape const shape = s.modulated(hidden, slots);
  buffer<T> d_out;
  if (is_ace()) {
    d_out = s.take(rows * hidden, "d_mlp_out");
    buffer<T> const partial = s.take(shape.partial_count(1), "partial");
    s.dit.gated_add_backward(shape, t.mlp_out, t.modulation + mlp_gate * hidden, d_x, d_out,
                             d_modulation + mlp_gate * hidden, partial);
    t.mlp_out = {};
  }
  buffer<T> d_active = s.take(rows * shape_.ffn, "d_active");
  s.placed.backward(at.down, rows, t.active, is_ace() ? d_out.get() : d_x, d_active);
  d_out = {};
  t.active = {};
  buffer<T> d_gate_up = s.take(rows * 2 * shape_.ffn, "d_gate_up");
  s.op.swiglu_backward(rows, shape_.ffn, t.gate_up, d_active, d_gate_up);
  t.gate_up = {};
  d_active = {};
  buffer<T> const d_normed = s.take(rows * hidden, "d_mlp_normed");
  s.placed.backward(at.gate_up, rows, t.mlp_normed, d_gate_up, d_normed);
  t.mlp_normed = {};
  norm_backward(s, {at.mlp_norm, at.mlp_bias, mlp_shift, mlp_scale}, x, t.modulation, t.mlp_inverse, d_normed, d_x,
                d_modulation);
}

template <class T>
void dit_model<T>::cross_backward(scene const& s, std::int64_t layer, dit_tape<T>& t, T* d_x) const {
  dit_layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const hidden = shape_.hidden, d = shape_.head_dim, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const rows = s.rows(), caption_rows = s.caption_rows(), batch = s.in.batch;
  buffer<T> d_o = s.take(rows * q * d, "d_cross_o");
  s.placed.backward(at.cross_o, rows, t.cross_o, d_x, d_o);
  buffer<T> d_q = s.take(rows * q * d, "d_cross_q");
  buffer<T> const d_kv = s.take(caption_rows * 2 * kv * d, "d_cross_kv");
  {
    buffer<T> const d_q_normed = s.take(rows * q * d, "d_cross_q_normed");
    buffer<T> const d_k_normed = s.take(caption_rows * kv * d, "d_cross_k_normed");
    {
      attention_site const site = cross_site(s);
      buffer<std::byte> const scratch = s.scratch(s.op.attention(site).backward_scratch);
      T const *const o = t.cross_o, *const given = d_o;
      s.op.attention_backward(site, cross_views(shape_, s, t), heads_of(batch, s.length, o, q, 0, q, d), t.cross_saved,
                              heads_of(batch, s.length, given, q, 0, q, d),
                              {heads_of(batch, s.length, d_q_normed.get(), q, 0, q, d),
                               heads_of(batch, s.in.caption_length, d_k_normed.get(), kv, 0, kv, d),
                               heads_of(batch, s.in.caption_length, d_kv.get(), 2 * kv, kv, kv, d)},
                              scratch);
    }
    buffer<T> const partial = s.partial(partial_count(std::max(rows, caption_rows), 2 * d));
    s.op.head_norm_backward({rows, s.length, q, 0, d, shape_.epsilon}, t.q, w + at.cross_q_norm, w + at.cross_k_norm,
                            nullptr, t.q_inverse, d_q_normed, d_q, s.gradient(at.cross_q_norm),
                            s.gradient(at.cross_k_norm), partial);
    s.op.head_norm_backward({caption_rows, s.in.caption_length, 0, kv, d, shape_.epsilon}, t.kv, w + at.cross_q_norm,
                            w + at.cross_k_norm, nullptr, t.k_inverse, d_k_normed, d_kv, s.gradient(at.cross_q_norm),
                            s.gradient(at.cross_k_norm), partial);
  }
  d_o = {};
  {
    buffer<T> const d_caption = s.is_frozen() ? buffer<T>() : s.take(caption_rows * hidden, "d_caption_part");
    s.placed.backward(at.cross_kv, caption_rows, s.caption, d_kv, d_caption);
    if (!s.is_frozen()) s.op.add_columns(caption_rows, hidden, T(1), d_caption, hidden, T(1), s.d_caption, hidden);
  }
  buffer<T> const d_normed = s.take(rows * hidden, "d_cross_normed");
  s.placed.backward(at.cross_q, rows, t.cross_normed, d_q, d_normed);
  buffer<T> const partial = s.partial(partial_count(rows, hidden));
  s.op.rms_norm_backward(rows, hidden, t.middle, w + at.cross_norm, t.cross_inverse, d_normed, d_x,
                         s.gradient(at.cross_norm), partial);
}

template <class T>
void dit_model<T>::self_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x,
                                 T* d_modulation) const {
  dit_layer_weights const& at = layout_->layer(layer);
  T const* const w = s.weights;
  std::int64_t const hidden = shape_.hidden, d = shape_.head_dim, q = shape_.q_heads, kv = shape_.kv_heads;
  std::int64_t const rows = s.rows(), all = shape_.all_heads(), batch = s.in.batch;
  sequence_shape const shape = s.modulated(hidden, slots);
  head_shape const heads{rows, s.length, q, kv, d, shape_.epsilon};
  buffer<T> d_attended;
  if (is_ace()) {
    d_attended = s.take(rows * hidden, "d_attended");
    buffer<T> const partial = s.take(shape.partial_count(1), "partial");
    s.dit.gated_add_backward(shape, t.attended, t.modulation + self_gate * hidden, d_x, d_attended,
                             d_modulation + self_gate * hidden, partial);
  }
  buffer<T> d_o = s.take(rows * q * d, "d_o");
  s.placed.backward(at.o, rows, t.o, is_ace() ? d_attended.get() : d_x, d_o);
  d_attended = {};
  buffer<T> const d_qkv = s.take(rows * all * d, "d_qkv");
  {
    buffer<T> const d_qk = is_ace() ? s.take(rows * (q + kv) * d, "d_qk") : buffer<T>();
    T* const turned = is_ace() ? d_qk.get() : d_qkv.get();
    std::int64_t const turned_heads = is_ace() ? q + kv : all;
    {
      attention_site const site = self_site(s, layer);
      buffer<std::byte> const scratch = s.scratch(s.op.attention(site).backward_scratch);
      T const *const o = t.o, *const given = d_o;
      s.op.attention_backward(site, self_views(shape_, s, t), heads_of(batch, s.length, o, q, 0, q, d), t.saved,
                              heads_of(batch, s.length, given, q, 0, q, d),
                              {heads_of(batch, s.length, turned, turned_heads, 0, q, d),
                               heads_of(batch, s.length, turned, turned_heads, q, kv, d),
                               heads_of(batch, s.length, d_qkv.get(), all, q + kv, kv, d)},
                              scratch);
    }
    d_o = {};
    if (is_ace()) {
      buffer<T> const partial = s.partial(partial_count(rows, 2 * d));
      s.op.head_norm_backward(heads, t.qkv, w + at.q_norm, w + at.k_norm, s.rotary, t.head_inverse, d_qk, d_qkv,
                              s.gradient(at.q_norm), s.gradient(at.k_norm), partial);
    } else {
      s.dit.rotate(heads, shape_.rotated, s.rotary, true, d_qkv);
    }
  }
  buffer<T> const d_normed = s.take(rows * hidden, "d_normed");
  s.placed.backward(at.qkv, rows, t.normed, d_qkv, d_normed);
  norm_backward(s, {at.self_norm, at.self_bias, self_shift, self_scale}, x, t.modulation, t.inverse, d_normed, d_x,
                d_modulation);
}

template <class T>
void dit_model<T>::layer_backward(scene const& s, std::int64_t layer, T const* x, dit_tape<T>& t, T* d_x) const {
  if (!is_ace()) {
    mlp_backward(s, layer, t.middle, t, d_x, nullptr);
    self_backward(s, layer, x, t, d_x, nullptr);
    t = {};
    return;
  }
  std::int64_t const batch = s.in.batch, width = slots * shape_.hidden;
  buffer<T> const d_modulation = s.take(batch * width, "d_modulation");
  mlp_backward(s, layer, t.crossed, t, d_x, d_modulation);
  cross_backward(s, layer, t, d_x);
  self_backward(s, layer, x, t, d_x, d_modulation);
  t = {};
  if (s.is_frozen()) return;
  buffer<T> const partial = s.partial(partial_count(batch, width));
  s.dit.sum_rows(batch, width, d_modulation, s.gradient(layout_->layer(layer).table), partial);
  s.op.add_columns(batch, width, T(1), d_modulation, width, T(1), s.d_projection, width);
}

template buffer<float> dit_model<float>::layer_forward(scene const&, std::int64_t, float const*,
                                                       dit_tape<float>&) const;
template void dit_model<float>::layer_backward(scene const&, std::int64_t, float const*, dit_tape<float>&,
                                               float*) const;
template buffer<double> dit_model<double>::layer_forward(scene const&, std::int64_t, double const*,
                                                         dit_tape<double>&) const;
template void dit_model<double>::layer_backward(scene const&, std::int64_t, double const*, dit_tape<double>&,
                                                double*) const;

}  // namespace trainer
