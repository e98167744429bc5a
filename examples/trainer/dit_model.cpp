#include "dit_model.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "dit_scene.hpp"
#include "random.hpp"

namespace trainer {

time_weights dit_layout::add_time(dit_shape const& s, std::string const& name) {
  time_weights w{};
  w.in = full_.add(name + ".linear_1.weight", {s.hidden, time_features});
  w.in_bias = full_.add(name + ".linear_1.bias", {s.hidden});
  w.out = full_.add(name + ".linear_2.weight", {s.hidden, s.hidden});
  w.out_bias = full_.add(name + ".linear_2.bias", {s.hidden});
  if (s.style == dit_style::mm3) return w;
  w.projection = full_.add(name + ".time_proj.weight", {6 * s.hidden, s.hidden});
  w.projection_bias = full_.add(name + ".time_proj.bias", {6 * s.hidden});
  return w;
}

void dit_layout::add_layer(dit_shape const& s, std::string const& at) {
  bool const ace = s.style == dit_style::ace;
  std::int64_t const q = s.q_heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  dit_layer_weights w{};
  if (ace) w.table = full_.add(at + "scale_shift_table", {6, s.hidden});
  w.self_norm = full_.add(at + "self_attn_norm.weight", {s.hidden});
  if (!ace) w.self_bias = full_.add(at + "self_attn_norm.bias", {s.hidden});
  w.qkv = add_projection(at, s.hidden, {{"q", q}, {"k", kv}, {"v", kv}});
  if (ace) {
    w.q_norm = full_.add(at + "self_attn.q_norm.weight", {s.head_dim});
    w.k_norm = full_.add(at + "self_attn.k_norm.weight", {s.head_dim});
  }
  w.o = add_projection(at, q, {{"o", s.hidden}});
  if (ace) {
    w.cross_norm = full_.add(at + "cross_attn_norm.weight", {s.hidden});
    w.cross_q = add_projection(at, s.hidden, {{"cross_q", q}});
    w.cross_kv = add_projection(at, s.hidden, {{"cross_k", kv}, {"cross_v", kv}});
    w.cross_q_norm = full_.add(at + "cross_attn.q_norm.weight", {s.head_dim});
    w.cross_k_norm = full_.add(at + "cross_attn.k_norm.weight", {s.head_dim});
    w.cross_o = add_projection(at, q, {{"cross_o", s.hidden}});
  }
  w.mlp_norm = full_.add(at + "mlp_norm.weight", {s.hidden});
  if (!ace) w.mlp_bias = full_.add(at + "mlp_norm.bias", {s.hidden});
  w.gate_up = add_projection(at, s.hidden, {{"gate", s.ffn}, {"up", s.ffn}});
  w.down = add_projection(at, s.ffn, {{"down", s.hidden}});
  layers_.push_back(w);
}

dit_layout::dit_layout(dit_shape const& s, adaptation const& how) : weight_layout(how, dit_sites(s.style)) {
  bool const ace = s.style == dit_style::ace;
  in = full_.add("proj_in.weight", {s.hidden, s.patch_width()});
  if (s.context > 0) in_context = full_.add("proj_in.context.weight", {s.hidden, s.patch * s.context});
  in_bias = full_.add("proj_in.bias", {s.hidden});
  time = add_time(s, "time_embed");
  if (ace) {
    time_gap = add_time(s, "time_embed_r");
    caption = full_.add("caption.weight", {caption_entries, s.caption_width});
    condition = full_.add("condition_embedder.weight", {s.hidden, s.caption_width});
    condition_bias = full_.add("condition_embedder.bias", {s.hidden});
  }
  for (std::int64_t i = 0; i < s.layers; ++i) add_layer(s, "layers." + std::to_string(i) + ".");
  norm_out = full_.add("norm_out.weight", {s.hidden});
  if (ace) table_out = full_.add("scale_shift_table", {2, s.hidden});
  else norm_out_bias = full_.add("norm_out.bias", {s.hidden});
  out = full_.add("proj_out.weight", {s.patch_width(), s.hidden});
  out_bias = full_.add("proj_out.bias", {s.patch_width()});
}

template <class T>
void draw_weight(parameter const& p, std::uint64_t index, dit_shape const& shape, std::uint64_t seed,
                 std::int64_t begin, std::int64_t end, T* to) {
  random_numbers draw(seed, stream::weights, index);
  draw.skip(2 * std::uint64_t(begin));
  double const deviation = p.name.ends_with("table") ? 1 / std::sqrt(double(shape.hidden)) : 0.02;
  T const constant = p.name.ends_with("bias") ? T(0) : T(1);
  for (std::int64_t i = begin; i < end; ++i) to[i] = p.is_matrix ? T(draw.normal() * deviation) : constant;
}

template <class T>
void initialise(dit_layout const& layout, dit_shape const& shape, std::uint64_t seed, T* weights) {
  std::uint64_t index = 0;
  for (parameter const& p : layout.full().all()) draw_weight(p, index++, shape, seed, 0, p.count, weights + p.offset);
}

template <class T>
dit_model<T>::dit_model(dit_shape const& shape, attention_kind attention, dit_layout const& layout,
                        std::int64_t segments)
    : shape_(shape), attention_(attention), layout_(&layout),
      segments_(std::clamp<std::int64_t>(segments, 1, shape.layers)), inputs_(std::size_t(shape.layers + 1)),
      tapes_(std::size_t(shape.layers)) {}

template <class T>
void dit_model<T>::time_forward(scene const& s, time_weights const& at, T const* features, time_tape& kept) const {
  T const* const w = s.weights;
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, count = batch * hidden;
  kept.inner = s.take(count, "time inner");
  s.op.linear(batch, time_features, hidden, features, w + at.in, nullptr, kept.inner);
  s.dit.add_row(batch, hidden, w + at.in_bias, kept.inner);
  kept.active = s.take(count, "time active");
  s.dit.silu(count, kept.inner, kept.active);
  kept.embedding = s.take(count, "time embedding");
  s.op.linear(batch, hidden, hidden, kept.active, w + at.out, nullptr, kept.embedding);
  s.dit.add_row(batch, hidden, w + at.out_bias, kept.embedding);
  if (!is_ace()) return;
  kept.embedding_active = s.take(count, "time embedding active");
  s.dit.silu(count, kept.embedding, kept.embedding_active);
  kept.projection = s.take(6 * count, "time projection");
  s.op.linear(batch, hidden, 6 * hidden, kept.embedding_active, w + at.projection, nullptr, kept.projection);
  s.dit.add_row(batch, 6 * hidden, w + at.projection_bias, kept.projection);
}

/// d_embedding: of the embedding, from elsewhere than its projection; used up.
template <class T>
void dit_model<T>::time_backward(scene const& s, time_weights const& at, T const* features, time_tape& kept,
                                 T* d_embedding) const {
  T const* const w = s.weights;
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, count = batch * hidden;
  buffer<T> const d_active = s.take(count, "d_time_active"), d_inner = s.take(count, "d_time_inner");
  buffer<T> const partial = s.take(partial_count(batch, 6 * hidden), "partial");
  if (is_ace()) {
    s.op.linear_backward(batch, hidden, 6 * hidden, kept.embedding_active, w + at.projection, s.d_projection, d_active,
                         s.gradient(at.projection));
    s.dit.sum_rows(batch, 6 * hidden, s.d_projection, s.gradient(at.projection_bias), partial);
    s.dit.silu_backward(count, kept.embedding, d_active, d_inner);
    s.op.add_columns(batch, hidden, T(1), d_inner, hidden, T(1), d_embedding, hidden);
  }
  s.op.linear_backward(batch, hidden, hidden, kept.active, w + at.out, d_embedding, d_active, s.gradient(at.out));
  s.dit.sum_rows(batch, hidden, d_embedding, s.gradient(at.out_bias), partial);
  s.dit.silu_backward(count, kept.inner, d_active, d_inner);
  s.op.linear_backward(batch, time_features, hidden, features, w + at.in, d_inner, nullptr, s.gradient(at.in));
  s.dit.sum_rows(batch, hidden, d_inner, s.gradient(at.in_bias), partial);
  kept = {};
}

template <class T>
void dit_model<T>::embed(scene& s, start& kept) const {
  T const* const w = s.weights;
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, rows = batch * s.in.tokens;
  time_forward(s, layout_->time, s.in.time, kept.time);
  if (is_ace()) {
    time_forward(s, layout_->time_gap, s.in.time_gap, kept.time_gap);
    auto const add = [&](buffer<T>& to, T const* other, std::int64_t width) {
      s.op.add_columns(batch, width, T(1), other, width, T(1), to, width);
    };
    kept.embedding = s.take(batch * hidden, "embedding");
    s.op.add_columns(batch, hidden, T(1), kept.time.embedding, hidden, T(0), kept.embedding, hidden);
    add(kept.embedding, kept.time_gap.embedding, hidden);
    kept.projection = s.take(batch * 6 * hidden, "projection");
    s.op.add_columns(batch, 6 * hidden, T(1), kept.time.projection, 6 * hidden, T(0), kept.projection, 6 * hidden);
    add(kept.projection, kept.time_gap.projection, 6 * hidden);
    kept.time.projection = {};
    kept.time_gap.projection = {};
    s.embedding = kept.embedding;
    s.projection = kept.projection;
    kept.caption_bytes = s.take(s.caption_rows() * shape_.caption_width, "caption bytes");
    s.op.embed(s.caption_rows(), shape_.caption_width, s.in.caption, w + layout_->caption, kept.caption_bytes);
    kept.caption = s.take(s.caption_rows() * hidden, "caption");
    s.op.linear(s.caption_rows(), shape_.caption_width, hidden, kept.caption_bytes, w + layout_->condition, nullptr,
                kept.caption);
    s.dit.add_row(s.caption_rows(), hidden, w + layout_->condition_bias, kept.caption);
    s.caption = kept.caption;
  }
  buffer<T> patches = s.take(rows * hidden, "patches");
  s.op.linear(rows, shape_.patch_width(), hidden, s.in.noised, w + layout_->in, nullptr, patches);
  if (shape_.context > 0) {
    buffer<T> both = s.take(rows * hidden, "patches with context");
    s.op.linear(rows, shape_.patch * shape_.context, hidden, s.in.context, w + layout_->in_context, patches, both);
    patches = std::move(both);
  }
  s.dit.add_row(rows, hidden, w + layout_->in_bias, patches);
  if (shape_.prefix() == 0) {
    kept.x = std::move(patches);
    return;
  }
  kept.x = s.take(s.rows() * hidden, "x");
  std::int64_t const stride = s.length * hidden, width = s.in.tokens * hidden;
  s.op.add_columns(batch, hidden, T(1), kept.time.embedding, hidden, T(0), kept.x, stride);
  s.op.add_columns(batch, width, T(1), patches, width, T(0), kept.x + hidden, stride);
}

template <class T>
void dit_model<T>::embed_backward(scene const& s, start& kept, T* d_x) const {
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, rows = batch * s.in.tokens;
  buffer<T> d_patches;
  if (shape_.prefix() > 0) {
    std::int64_t const stride = s.length * hidden, width = s.in.tokens * hidden;
    d_patches = s.take(rows * hidden, "d_patches");
    s.op.add_columns(batch, width, T(1), d_x + hidden, stride, T(0), d_patches, width);
    buffer<T> const d_embedding = s.take(batch * hidden, "d_embedding");
    s.op.add_columns(batch, hidden, T(1), d_x, stride, T(0), d_embedding, hidden);
    time_backward(s, layout_->time, s.in.time, kept.time, d_embedding);
  }
  T const* const d = shape_.prefix() > 0 ? d_patches.get() : d_x;
  buffer<T> const partial = s.take(partial_count(std::max(rows, s.caption_rows()), hidden), "partial");
  s.dit.sum_rows(rows, hidden, d, s.gradient(layout_->in_bias), partial);
  s.op.linear_backward(rows, shape_.patch_width(), hidden, s.in.noised, s.weights + layout_->in, d, nullptr,
                       s.gradient(layout_->in));
  if (shape_.context > 0)
    s.op.linear_backward(rows, shape_.patch * shape_.context, hidden, s.in.context, s.weights + layout_->in_context, d,
                         nullptr, s.gradient(layout_->in_context));
  if (!is_ace()) return;
  s.dit.sum_rows(s.caption_rows(), hidden, s.d_caption, s.gradient(layout_->condition_bias), partial);
  buffer<T> const d_bytes = s.take(s.caption_rows() * shape_.caption_width, "d_caption_bytes");
  s.op.linear_backward(s.caption_rows(), shape_.caption_width, hidden, kept.caption_bytes,
                       s.weights + layout_->condition, s.d_caption, d_bytes, s.gradient(layout_->condition));
  s.op.embed_backward(s.caption_rows(), shape_.caption_width, s.in.caption, d_bytes, s.gradient(layout_->caption));
}

template <class T>
void dit_model<T>::finish(scene const& s, T const* x, T* prediction, ending& kept) const {
  T const* const w = s.weights;
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, rows = s.rows(), tokens = batch * s.in.tokens;
  kept.normed = s.take(rows * hidden, "normed out");
  kept.inverse = s.take(rows * (is_ace() ? 1 : 2), "inverse out");
  if (is_ace()) {
    kept.modulation = s.take(batch * 2 * hidden, "modulation out");
    for (std::int64_t half : {0, 1})
      s.op.add_columns(batch, hidden, T(1), s.embedding, hidden, T(0), kept.modulation + half * hidden, 2 * hidden);
    s.dit.add_row(batch, 2 * hidden, w + layout_->table_out, kept.modulation);
    s.dit.adaptive_norm(s.modulated(hidden, 2), shape_.epsilon, x, w + layout_->norm_out, kept.modulation,
                        kept.modulation + hidden, kept.normed, kept.inverse);
  } else {
    s.dit.layer_norm(rows, hidden, shape_.epsilon, x, w + layout_->norm_out, w + layout_->norm_out_bias, kept.normed,
                     kept.inverse);
    std::int64_t const stride = s.length * hidden, width = s.in.tokens * hidden;
    kept.rows = s.take(tokens * hidden, "rows out");
    s.op.add_columns(batch, width, T(1), kept.normed + hidden, stride, T(0), kept.rows, width);
  }
  s.op.linear(tokens, hidden, shape_.patch_width(), is_ace() ? kept.normed : kept.rows, w + layout_->out, nullptr,
              prediction);
  s.dit.add_row(tokens, shape_.patch_width(), w + layout_->out_bias, prediction);
}

/// d_x is written, and d_embedding (ace) of the time's embedding, unless all of it is frozen.
template <class T>
void dit_model<T>::finish_backward(scene const& s, T const* x, ending& kept, T const* d_prediction, T* d_x,
                                   T* d_embedding) const {
  T const* const w = s.weights;
  std::int64_t const batch = s.in.batch, hidden = shape_.hidden, rows = s.rows(), tokens = batch * s.in.tokens;
  std::int64_t const width = shape_.patch_width();
  buffer<T> d_normed = s.take(rows * hidden, "d_normed_out");
  if (!s.is_frozen()) {
    buffer<T> const partial = s.partial(partial_count(tokens, width));
    s.dit.sum_rows(tokens, width, d_prediction, s.gradient(layout_->out_bias), partial);
  }
  s.op.zero(rows * hidden, d_x);
  if (is_ace()) {
    s.op.linear_backward(tokens, hidden, width, kept.normed, w + layout_->out, d_prediction, d_normed,
                         s.gradient(layout_->out));
    sequence_shape const shape = s.modulated(hidden, 2);
    buffer<T> const d_modulation = s.take(batch * 2 * hidden, "d_modulation_out");
    buffer<T> const partial = s.take(shape.partial_count(3), "partial");
    s.dit.adaptive_norm_backward(shape, x, w + layout_->norm_out, kept.modulation + hidden, kept.inverse, d_normed, d_x,
                                 s.gradient(layout_->norm_out), d_modulation, d_modulation + hidden, partial);
    if (s.is_frozen()) return;
    s.op.add_columns(batch, hidden, T(1), d_modulation, 2 * hidden, T(0), d_embedding, hidden);
    s.op.add_columns(batch, hidden, T(1), d_modulation + hidden, 2 * hidden, T(1), d_embedding, hidden);
    buffer<T> const table_partial = s.take(partial_count(batch, 2 * hidden), "partial");
    s.dit.sum_rows(batch, 2 * hidden, d_modulation, s.gradient(layout_->table_out), table_partial);
    return;
  }
  {
    buffer<T> const d_rows = s.take(tokens * hidden, "d_rows_out");
    s.op.linear_backward(tokens, hidden, width, kept.rows, w + layout_->out, d_prediction, d_rows,
                         s.gradient(layout_->out));
    std::int64_t const stride = s.length * hidden, element = s.in.tokens * hidden;
    s.op.zero(rows * hidden, d_normed);
    s.op.add_columns(batch, element, T(1), d_rows, element, T(0), d_normed + hidden, stride);
  }
  buffer<T> const partial = s.partial(partial_count(rows, 2 * hidden));
  s.dit.layer_norm_backward(rows, hidden, x, w + layout_->norm_out, kept.inverse, d_normed, d_x,
                            s.gradient(layout_->norm_out), s.gradient(layout_->norm_out_bias), partial);
}

template <class T>
void dit_model<T>::predict(ops<T> const& op, dit_ops<T> const& dit, step_memory& memory, dit_batch<T> const& in,
                           weight_arrays<T> const& weights, T const* rotary, T* prediction) {
  scene s{op, dit, memory, in, {op, memory, *layout_, weights}, weights.full, rotary, in.tokens + shape_.prefix()};
  start kept;
  embed(s, kept);
  buffer<T> x = std::move(kept.x);
  for (std::int64_t i = 0; i < shape_.layers; ++i) {
    dit_tape<T> forgotten;
    x = layer_forward(s, i, x, forgotten);
  }
  ending last;
  finish(s, x, prediction, last);
}

template <class T>
void dit_model<T>::train(ops<T> const& op, dit_ops<T> const& dit, step_memory& memory, dit_batch<T> const& in,
                         weight_arrays<T> const& weights, T const* rotary, T const* target, T const* row_weight,
                         T const* channel_weight, T* gradients, T* loss) {
  scene s{op,
          dit,
          memory,
          in,
          {op, memory, *layout_, weights, gradients},
          weights.full,
          rotary,
          in.tokens + shape_.prefix()};
  std::int64_t const hidden = shape_.hidden, layers = shape_.layers, batch = in.batch;
  start kept;
  embed(s, kept);
  inputs_[0] = std::move(kept.x);
  std::int64_t const kept_from = first_of(segments_ - 1);
  auto const forward = [&](std::int64_t segment, bool keeps) {
    for (std::int64_t i = first_of(segment); i < first_of(segment + 1); ++i) {
      dit_tape<T> forgotten;
      inputs_[std::size_t(i + 1)] =
          layer_forward(s, i, inputs_[std::size_t(i)], keeps ? tapes_[std::size_t(i)] : forgotten);
      if (!keeps && i != first_of(segment)) inputs_[std::size_t(i)] = {};
    }
  };
  for (std::int64_t segment = 0; segment < segments_; ++segment) forward(segment, first_of(segment) == kept_from);

  buffer<T> const d_x = s.take(s.rows() * hidden, "d_x");
  bool const trains_start = !layout_->is_frozen();  // what lies before the layers: adapters have nothing there
  buffer<T> const d_embedding = is_ace() && trains_start ? s.take(batch * hidden, "d_embedding") : buffer<T>();
  {
    ending last;
    buffer<T> const prediction = s.take(batch * in.tokens * shape_.patch_width(), "prediction");
    finish(s, inputs_[std::size_t(layers)], prediction, last);
    dit.squared_error(batch * in.tokens, shape_.patch_width(), target, row_weight, channel_weight, prediction, loss);
    finish_backward(s, inputs_[std::size_t(layers)], last, prediction, d_x, d_embedding);
  }
  inputs_[std::size_t(layers)] = {};
  buffer<T> d_caption, d_projection;
  if (is_ace() && trains_start) {
    d_caption = s.take(s.caption_rows() * hidden, "d_caption");
    d_projection = s.take(batch * 6 * hidden, "d_projection");
    op.zero(s.caption_rows() * hidden, d_caption);
    op.zero(batch * 6 * hidden, d_projection);
    s.d_caption = d_caption;
    s.d_projection = d_projection;
  }
  for (std::int64_t segment = segments_; segment-- > 0;) {
    if (segment + 1 < segments_) {
      forward(segment, true);
      inputs_[std::size_t(first_of(segment + 1))] = {};
    }
    for (std::int64_t i = first_of(segment + 1); i-- > first_of(segment);) {
      layer_backward(s, i, inputs_[std::size_t(i)], tapes_[std::size_t(i)], d_x);
      inputs_[std::size_t(i)] = {};
    }
  }
  if (trains_start) embed_backward(s, kept, d_x);
  if (!is_ace() || !trains_start) return;
  buffer<T> const d_gap = s.take(batch * hidden, "d_embedding_r");
  op.add_columns(batch, hidden, T(1), d_embedding, hidden, T(0), d_gap, hidden);
  time_backward(s, layout_->time, in.time, kept.time, d_embedding);
  time_backward(s, layout_->time_gap, in.time_gap, kept.time_gap, d_gap);
}

template void draw_weight(parameter const&, std::uint64_t, dit_shape const&, std::uint64_t, std::int64_t, std::int64_t,
                          float*);
template void draw_weight(parameter const&, std::uint64_t, dit_shape const&, std::uint64_t, std::int64_t, std::int64_t,
                          double*);
template void initialise(dit_layout const&, dit_shape const&, std::uint64_t, float*);
template void initialise(dit_layout const&, dit_shape const&, std::uint64_t, double*);
template class dit_model<float>;
template class dit_model<double>;

}  // namespace trainer
