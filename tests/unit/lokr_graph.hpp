// The training graph of a diffusion transformer with LoKR adapters at every projection, as memory sees it: forward,
// loss, backward without checkpointing and the optimiser's step, one op or view a node. Only sizes and dependencies are
// real; nothing is computed. Products take two-dimensional operands, so that the token axis never becomes a batch:
// views go around them. Frozen weights are stored in bf16 outside the arena and cast to f32 for each product; adapter
// weights lie outside as well; their gradients are persistent tensors in the arena.
//
//   a site: y = W x + scale (w1 kron w2) x, with w2 = w2_a w2_b where it is large      Yeh et al. 2023 (LyCORIS)
//   a layer: self-attention, cross-attention, SwiGLU, each behind an RMS norm, the first and last modulated and gated
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <lanewise/attention.hpp>
#include <lanewise/memory/arena.hpp>
#include <lanewise/memory/packed.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace lokr {

/// d = first * second with first <= second and first as large as `factor` allows: factor itself where it divides d.
inline std::pair<std::int64_t, std::int64_t> factorization(std::int64_t d, std::int64_t factor) {
  if (d % factor == 0) return std::minmax({factor, d / factor});
  std::pair<std::int64_t, std::int64_t> best{1, d};
  for (std::int64_t m = 1; m <= factor; ++m)
    if (d % m == 0 && m < d / m && m + d / m < best.first + best.second) best = {m, d / m};
  return best;
}

/// Sizes of one adapter of a projection in -> out.
struct adapter {
  std::int64_t in_m, in_n, out_l, out_k, dim;
  bool factorised;  ///< w2 [out_k, in_n] is stored as w2_a [out_k, dim] and w2_b [dim, in_n]

  adapter(std::int64_t in, std::int64_t out, std::int64_t dim, std::int64_t factor) : dim(dim) {
    std::tie(in_m, in_n) = factorization(in, factor);
    std::tie(out_l, out_k) = factorization(out, factor);
    factorised = dim < std::max(out_k, in_n) / 2;
  }
  std::int64_t parameters() const { return out_l * in_m + (factorised ? dim * (out_k + in_n) : out_k * in_n); }
};

struct shape {
  std::int64_t layers = 32, hidden = 2560, ffn = 9728, q_heads = 32, kv_heads = 8, head_dim = 128;
  std::int64_t batch = 1, tokens = 625, encoder_tokens = 1877;
  std::int64_t dim = 256, factor = 6;
};

/// Records the graph. Every tensor is f32.
class graph {
 public:
  explicit graph(shape const& s) : s_(s) { record(); }

  lanewise::arena_plan plan() const { return builder_.plan(); }
  std::int64_t nodes() const { return builder_.ops() + views_; }
  std::int64_t ops() const { return builder_.ops(); }
  std::int64_t factorised() const { return factorised_; }
  std::int64_t adapter_parameters() const { return parameters_; }

 private:
  using id = lanewise::tensor_id;

  /// A value of the forward, and whether its gradient is wanted.
  struct value {
    id tensor;
    std::int64_t count;
    bool differentiable;
  };

  static std::size_t bytes(std::int64_t count) { return std::size_t(count) * sizeof(float); }

  id view(id of, std::int64_t offset, std::int64_t count, char const* name) {
    ++views_;
    return builder_.view_of(of, bytes(offset), bytes(count), {name, layer_});
  }

  /// One op with one result.
  id node(std::initializer_list<id> reads, std::int64_t count, char const* name) {
    id const out = builder_.tensor(bytes(count), {name, layer_});
    builder_.op(reads, {out}, {name, layer_});
    return out;
  }
  /// The same, element by element, so that the result may lie on any operand of its size.
  id elementwise(std::initializer_list<id> reads, std::int64_t count, char const* name) {
    id const out = builder_.tensor(bytes(count), {name, layer_});
    auto op = builder_.op(reads, {out}, {name, layer_});
    for (id read : reads) op.in_place(out, read);
    return out;
  }

  void backward(std::function<void()> f) { tape_.push_back({layer_, std::move(f)}); }

  /// Adds `d` to the gradient of v.
  void give(value const& v, id d) {
    if (!v.differentiable) return;
    id& sum = gradient(v);
    sum = sum ? elementwise({sum, d}, v.count, "grad_add") : d;
  }
  id& gradient(value const& v) {
    if (gradients_.size() <= v.tensor.index) gradients_.resize(v.tensor.index + 1);
    return gradients_[v.tensor.index];
  }

  /// The gradient of an adapter's weight: a product, added to the persistent sum of the accumulation steps.
  void give_weight(std::initializer_list<id> reads, std::int64_t count, id sum) {
    id const d = node(reads, count, "d_weight");
    builder_.op({sum, d}, {sum}, {"accumulate", layer_});
  }

  /// y = W x with a frozen W of `weights` elements.
  value frozen(value const& x, std::int64_t out_count, std::int64_t weights, char const* name) {
    value const y{node({node({}, weights, "cast"), x.tensor}, out_count, name), out_count, x.differentiable};
    if (x.differentiable)
      backward([=, this] {
        id const transposed = view(gradient(y), 0, y.count, "d_y_transposed");
        give(x, node({node({}, weights, "d_cast"), transposed}, x.count, "d_frozen"));
      });
    return y;
  }

  /// y = w x with an adapter's weight of `weights` elements.
  value leg(value const& given, std::int64_t out_count, std::int64_t weights, char const* name) {
    value const x = reshape(given, "as_matrix");
    id const sum = builder_.persistent(bytes(weights), {"weight_grad", layer_});
    weight_gradients_.push_back(sum);
    parameters_ += weights;
    value const y{node({x.tensor}, out_count, name), out_count, true};
    backward([=, this] {
      give_weight({gradient(y), x.tensor}, weights, sum);
      if (x.differentiable) give(x, node({view(gradient(y), 0, y.count, "d_y_transposed")}, x.count, "d_leg"));
    });
    return reshape(y, "as_tokens");
  }

  value reshape(value const& x, char const* name) {
    value const y{view(x.tensor, 0, x.count, name), x.count, x.differentiable};
    if (x.differentiable) backward([=, this] { give(x, view(gradient(y), 0, x.count, "d_reshape")); });
    return y;
  }

  /// A permuted view made contiguous.
  value transpose(value const& x, char const* name) {
    value const y{node({view(x.tensor, 0, x.count, "permute")}, x.count, name), x.count, x.differentiable};
    if (x.differentiable)
      backward([=, this] { give(x, node({view(gradient(y), 0, x.count, "d_permute")}, x.count, "d_transpose")); });
    return y;
  }

  value add(value const& a, value const& b, char const* name) {
    value const y{elementwise({a.tensor, b.tensor}, a.count, name), a.count, a.differentiable || b.differentiable};
    backward([=, this] {
      give(a, gradient(y));
      give(b, gradient(y));
    });
    return y;
  }

  /// x times something that has no gradient: a constant, or a row of the modulation.
  value scale(value const& x, std::initializer_list<id> by, char const* name) {
    std::vector<id> reads{x.tensor};
    reads.insert(reads.end(), by.begin(), by.end());
    id const out = builder_.tensor(bytes(x.count), {name, layer_});
    builder_.op(reads, std::initializer_list<id>{out}, {name, layer_}).in_place(out, x.tensor);
    value const y{out, x.count, x.differentiable};
    std::vector<id> const factors(by);
    if (x.differentiable)
      backward([=, this] {
        std::vector<id> operands{gradient(y)};
        operands.insert(operands.end(), factors.begin(), factors.end());
        id const d = builder_.tensor(bytes(x.count), {"d_scale", layer_});
        builder_.op(operands, std::initializer_list<id>{d}, {"d_scale", layer_}).in_place(d, gradient(y));
        give(x, d);
      });
    return y;
  }

  value norm(value const& x, char const* name) {
    value const y{node({x.tensor}, x.count, name), x.count, x.differentiable};
    if (x.differentiable) backward([=, this] { give(x, node({gradient(y), x.tensor}, x.count, "d_norm")); });
    return scale(y, {}, "norm_gain");
  }

  value rope(value const& x) {
    value const y{elementwise({x.tensor}, x.count, "rope"), x.count, x.differentiable};
    if (x.differentiable) backward([=, this] { give(x, elementwise({gradient(y)}, x.count, "d_rope")); });
    return y;
  }

  value silu(value const& x) {
    value const y{node({x.tensor}, x.count, "silu"), x.count, true};
    backward([=, this] { give(x, elementwise({gradient(y), x.tensor}, x.count, "d_silu")); });
    return y;
  }

  value multiply(value const& a, value const& b) {
    value const y{node({a.tensor, b.tensor}, a.count, "multiply"), a.count, true};
    backward([=, this] {
      give(a, node({gradient(y), b.tensor}, a.count, "d_multiply_a"));
      give(b, node({gradient(y), a.tensor}, b.count, "d_multiply_b"));
    });
    return y;
  }

  /// A projection of `rows` tokens with its adapter: the w2 leg, then the w1 leg, a transpose around the latter.
  value project(value const& x, std::int64_t rows, std::int64_t in, std::int64_t out, char const* name) {
    adapter const a(in, out, s_.dim, s_.factor);
    factorised_ += a.factorised;
    value t = x;
    if (a.factorised) t = leg(t, rows * a.in_m * a.dim, a.dim * a.in_n, "w2_b");
    t = leg(t, rows * a.in_m * a.out_k, a.factorised ? a.out_k * a.dim : a.out_k * a.in_n, "w2");
    t = transpose(t, "by_in_m");
    t = leg(t, rows * a.out_l * a.out_k, a.out_l * a.in_m, "w1");
    t = reshape(transpose(t, "by_out_k"), "by_out");
    return add(frozen(x, rows * out, in * out, name), scale(t, {}, "adapter_scale"), "adapted");
  }

  static constexpr lanewise::config attention_config{.head_dim = 128};

  value attention(value const& q, value const& k, value const& v, std::int64_t keys) {
    lanewise::extents const eq{s_.batch, s_.tokens, s_.q_heads, s_.head_dim},
        ek{s_.batch, keys, s_.kv_heads, s_.head_dim};
    lanewise::packed_forward<attention_config> const forward{eq};
    lanewise::packed_backward<attention_config> const back{eq, ek};
    value const qh = reshape(q, "q_heads"), kh = reshape(k, "k_heads"), vh = reshape(v, "v_heads");
    id const pack = builder_.tensor(forward.bytes(), {"o_lse", layer_});
    builder_.op({qh.tensor, kh.tensor, vh.tensor}, {pack}, {"attention", layer_});
    value const o{view(pack, 0, q.count, "o"), q.count, true};
    backward([=, this] {
      id const d = builder_.tensor(back.bytes(), {"d_qkv", layer_}),
               scratch = builder_.tensor(bytes(q.count), {"scratch", layer_});
      builder_.op({qh.tensor, kh.tensor, vh.tensor, pack, gradient(o)}, {d, scratch}, {"d_attention", layer_});
      give(qh, view(d, 0, q.count, "d_q"));
      give(kh, view(d, std::int64_t(back.d_k_offset() / sizeof(float)), k.count, "d_k"));
      give(vh, view(d, std::int64_t(back.d_v_offset() / sizeof(float)), v.count, "d_v"));
    });
    return reshape(o, "merge_heads");
  }

  value attend(value const& x, value const& from, std::int64_t keys, bool rotary) {
    std::int64_t const rows = s_.batch * s_.tokens, key_rows = s_.batch * keys;
    std::int64_t const q_width = s_.q_heads * s_.head_dim, kv_width = s_.kv_heads * s_.head_dim;
    value q = norm(reshape(project(x, rows, s_.hidden, q_width, "q"), "split_q"), "q_norm");
    value k = norm(reshape(project(from, key_rows, s_.hidden, kv_width, "k"), "split_k"), "k_norm");
    value const v = reshape(project(from, key_rows, s_.hidden, kv_width, "v"), "split_v");
    if (rotary) {
      q = rope(q);
      k = rope(k);
    }
    return project(attention(q, k, v, keys), rows, q_width, s_.hidden, "o");
  }

  /// x (1 + scale) + shift.
  value modulate(value const& x, id by, id shift) {
    value const y = scale(x, {node({by}, s_.batch * s_.hidden, "one_plus")}, "modulate");
    return add(y, {shift, y.count, false}, "shift");
  }

  value transformer_layer(value const& x, id time, value const& encoder) {
    std::int64_t const rows = s_.batch * s_.tokens, slot = s_.batch * s_.hidden;
    id const table = node({time}, 6 * slot, "modulation");
    id slots[6];
    for (int i = 0; i < 6; ++i) slots[i] = view(table, i * slot, slot, "slot");
    value h = modulate(norm(x, "norm_1"), slots[0], slots[1]);
    h = attend(h, h, s_.tokens, true);
    value y = add(x, scale(h, {slots[2]}, "gate"), "residual_1");
    y = add(y, attend(norm(y, "norm_2"), encoder, s_.encoder_tokens, false), "residual_2");
    h = modulate(norm(y, "norm_3"), slots[3], slots[4]);
    value const gate = silu(project(h, rows, s_.hidden, s_.ffn, "gate"));
    value const up = project(h, rows, s_.hidden, s_.ffn, "up");
    h = project(multiply(gate, up), rows, s_.ffn, s_.hidden, "down");
    return add(y, scale(h, {slots[5]}, "gate"), "residual_3");
  }

  void record() {
    std::int64_t const rows = s_.batch * s_.tokens, slot = s_.batch * s_.hidden;
    id const patches = builder_.input(bytes(rows * 384), "patches"),
             target = builder_.input(bytes(rows * 128), "target");
    id const time = builder_.input(bytes(6 * slot), "time");
    value const encoder{builder_.input(bytes(s_.batch * s_.encoder_tokens * s_.hidden), "encoder"),
                        s_.batch * s_.encoder_tokens * s_.hidden, false};
    value x{node({patches}, rows * s_.hidden, "embed"), rows * s_.hidden, false};
    for (layer_ = 0; layer_ < s_.layers; ++layer_) x = transformer_layer(x, time, encoder);
    layer_ = -1;
    id const table = node({time}, 2 * slot, "modulation");
    x = modulate(norm(x, "norm_out"), view(table, 0, slot, "slot"), view(table, slot, slot, "slot"));
    value const out = frozen(x, rows * 128, s_.hidden * 128, "unpatch");
    builder_.keep(node({out.tensor, target}, 1, "loss"));
    give(out, node({out.tensor, target}, out.count, "d_loss"));
    for (auto step = tape_.rbegin(); step != tape_.rend(); ++step) {
      layer_ = step->first;
      step->second();
    }
    for (id sum : weight_gradients_) builder_.op({sum}, {}, "adamw");
  }

  shape s_;
  lanewise::arena_builder builder_;
  std::vector<id> gradients_;  ///< by the index of a value's tensor
  std::vector<id> weight_gradients_;
  std::vector<std::pair<std::int64_t, std::function<void()>>> tape_;
  std::int64_t layer_ = -1, views_ = 0, factorised_ = 0, parameters_ = 0;
};

}  // namespace lokr
