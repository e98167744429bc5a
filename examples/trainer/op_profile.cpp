#include "op_profile.hpp"

#include <algorithm>
#include <tuple>

namespace trainer {
namespace {

double product_of(std::initializer_list<std::int64_t> factors) {
  double n = 1;
  for (std::int64_t f : factors) n *= double(f);
  return n;
}

/// Another device's ops, each call measured.
class profiled_ops final : public ops<float> {
 public:
  profiled_ops(ops<float> const& inner, op_profile& to) : inner_(inner), to_(to) {}
  bool planning() const override { return inner_.planning(); }

  void zero(std::int64_t count, float* x) const override {
    to_.measure("element by element", "zero", 0, [&] { inner_.zero(count, x); });
  }
  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
              float const* residual, float* y) const override {
    to_.measure("products", "linear", product_of({2, rows, in, out}),
                [&] { inner_.linear(rows, in, out, x, w, residual, y); });
  }
  void linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, float const* w,
                       float const* d_y, float* d_x, float* d_w) const override {
    to_.measure("products", "linear backward", product_of({(d_x ? 2 : 0) + (d_w ? 2 : 0), rows, in, out}),
                [&] { inner_.linear_backward(rows, in, out, x, w, d_y, d_x, d_w); });
  }
  rounded_needs needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const override {
    return inner_.needs_of_rounded(rows, in, out);
  }
  void rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, float const* x, lanewise::bf16 const* w,
                      float const* residual, float* y, void* scratch) const override {
    to_.measure("products", "linear in bf16", product_of({2, rows, in, out}),
                [&] { inner_.rounded_linear(rows, in, out, x, w, residual, y, scratch); });
  }
  void rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                               float const* d_y, float* d_x, void* scratch) const override {
    to_.measure("products", "linear in bf16 backward", product_of({d_x ? 2 : 0, rows, in, out}),
                [&] { inner_.rounded_linear_backward(rows, in, out, w, d_y, d_x, scratch); });
  }
  void rms_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain, float* y,
                float* inverse) const override {
    to_.measure("norms", "rms norm", 0, [&] { inner_.rms_norm(rows, n, epsilon, x, gain, y, inverse); });
  }
  void rms_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain, float const* inverse,
                         float const* d_y, float* d_x, float* d_gain, float* partial) const override {
    to_.measure("norms", "rms norm backward", 0,
                [&] { inner_.rms_norm_backward(rows, n, x, gain, inverse, d_y, d_x, d_gain, partial); });
  }
  void head_norm(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                 float* qk, float* inverse) const override {
    to_.measure("norms", "head norm and rotation", 0,
                [&] { inner_.head_norm(s, qkv, q_gain, k_gain, rotary, qk, inverse); });
  }
  void head_norm_backward(head_shape s, float const* qkv, float const* q_gain, float const* k_gain, float const* rotary,
                          float const* inverse, float const* d_qk, float* d_qkv, float* d_q_gain, float* d_k_gain,
                          float* partial) const override {
    to_.measure("norms", "head norm and rotation backward", 0, [&] {
      inner_.head_norm_backward(s, qkv, q_gain, k_gain, rotary, inverse, d_qk, d_qkv, d_q_gain, d_k_gain, partial);
    });
  }
  void swiglu(std::int64_t rows, std::int64_t n, float const* gate_up, float* y) const override {
    to_.measure("element by element", "swiglu", 0, [&] { inner_.swiglu(rows, n, gate_up, y); });
  }
  void swiglu_backward(std::int64_t rows, std::int64_t n, float const* gate_up, float const* d_y,
                       float* d_gate_up) const override {
    to_.measure("element by element", "swiglu backward", 0,
                [&] { inner_.swiglu_backward(rows, n, gate_up, d_y, d_gate_up); });
  }
  void embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* table,
             float* x) const override {
    to_.measure("embedding and loss", "embed", 0, [&] { inner_.embed(rows, n, tokens, table, x); });
  }
  void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, float const* d_x,
                      float* d_table) const override {
    to_.measure("embedding and loss", "embed backward", 0,
                [&] { inner_.embed_backward(rows, n, tokens, d_x, d_table); });
  }
  void cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, float weight, float* logits,
                     float* loss) const override {
    to_.measure("embedding and loss", "cross entropy", 0,
                [&] { inner_.cross_entropy(rows, n, targets, weight, logits, loss); });
  }
  void product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, float alpha, float const* a,
               std::int64_t lda, float const* b, std::int64_t ldb, float beta, float* c,
               std::int64_t ldc) const override {
    to_.measure("products", "of adapters and Muon", product_of({2, m, n, k}),
                [&] { inner_.product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); });
  }
  void grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                       float alpha, float const* a, std::int64_t lda, float const* b, std::int64_t ldb, float beta,
                       float* c, std::int64_t ldc) const override {
    to_.measure("products", "of adapters in wider rows", product_of({2, s.groups, m, n, k}),
                [&] { inner_.grouped_product(s, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); });
  }
  void mix(mix_shape s, transpose t, float alpha, float const* w, float const* x, std::int64_t x_stride, float beta,
           float* y, std::int64_t y_stride) const override {
    to_.measure("adapters", "mix", product_of({2, s.rows, s.in_groups, s.out_groups, s.channels}),
                [&] { inner_.mix(s, t, alpha, w, x, x_stride, beta, y, y_stride); });
  }
  void mix_weight_backward(mix_shape s, float alpha, float const* d_y, std::int64_t d_y_stride, float const* x,
                           std::int64_t x_stride, float* d_w, float* partial) const override {
    to_.measure("adapters", "mix weight backward", product_of({2, s.rows, s.in_groups, s.out_groups, s.channels}),
                [&] { inner_.mix_weight_backward(s, alpha, d_y, d_y_stride, x, x_stride, d_w, partial); });
  }
  void add_columns(std::int64_t rows, std::int64_t n, float alpha, float const* x, std::int64_t x_stride, float beta,
                   float* y, std::int64_t y_stride) const override {
    to_.measure("element by element", "add columns", 0,
                [&] { inner_.add_columns(rows, n, alpha, x, x_stride, beta, y, y_stride); });
  }
  void widen(std::int64_t count, lanewise::bf16 const* x, float* y) const override {
    to_.measure("mirrors", "widen", 0, [&] { inner_.widen(count, x, y); });
  }
  void norm(std::int64_t segments, segment const* table, float const* x, double* squares,
            double* result) const override {
    to_.measure("optimiser", "gradient norm", 0, [&] { inner_.norm(segments, table, x, squares, result); });
  }
  void adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                    float const* gradients, float* weights, float* m, float* v) const override {
    to_.measure("optimiser", "AdamW", 0,
                [&] { inner_.adamw_update(segments, table, r, norm, gradients, weights, m, v); });
  }

  attention_needs attention(attention_site const& at) const override { return inner_.attention(at); }
  char const* attention_forward(attention_site const& at, attention_inputs<float> const& in, lanewise::view<float> o,
                                float* saved, void* scratch) const override {
    char const* kernel = "";
    to_.measure("attention", "forward, " + site_name(at.shape), forward_flop(at),
                [&] { kernel = inner_.attention_forward(at, in, o, saved, scratch); });
    return kernel;
  }
  char const* attention_backward(attention_site const& at, attention_inputs<float> const& in,
                                 lanewise::view<float const> o, float const* saved, lanewise::view<float const> d_o,
                                 attention_gradients<float> const& out, void* scratch) const override {
    char const* kernel = "";
    to_.measure("attention", "backward, " + site_name(at.shape), 2.5 * forward_flop(at),
                [&] { kernel = inner_.attention_backward(at, in, o, saved, d_o, out, scratch); });
    return kernel;
  }

 private:
  /// Two products of the pairs that the mask leaves; the backward needs five.
  static double forward_flop(attention_site const& at) {
    return at.kind == attention_kind::ablated ? 0 : product_of({4, at.shape.live_pairs(), at.shape.head_dim});
  }
  void copy_in(std::size_t bytes, void const* host, void* x) const override {
    to_.measure("copies", "to the device", 0, [&] {
      inner_.upload(std::int64_t(bytes), static_cast<std::byte const*>(host), static_cast<std::byte*>(x));
    });
  }
  void copy_out(std::size_t bytes, void const* x, void* host) const override {
    to_.measure("copies", "from the device", 0, [&] {
      inner_.download(std::int64_t(bytes), static_cast<std::byte const*>(x), static_cast<std::byte*>(host));
    });
  }

  ops<float> const& inner_;
  op_profile& to_;
};

class profiled_dit_ops final : public dit_ops<float> {
 public:
  profiled_dit_ops(dit_ops<float> const& inner, op_profile& to) : inner_(inner), to_(to) {}

  void adaptive_norm(sequence_shape s, double epsilon, float const* x, float const* gain, float const* shift,
                     float const* scale, float* y, float* inverse) const override {
    to_.measure("norms", "adaptive norm", 0,
                [&] { inner_.adaptive_norm(s, epsilon, x, gain, shift, scale, y, inverse); });
  }
  void adaptive_norm_backward(sequence_shape s, float const* x, float const* gain, float const* scale,
                              float const* inverse, float const* d_y, float* d_x, float* d_gain, float* d_shift,
                              float* d_scale, float* partial) const override {
    to_.measure("norms", "adaptive norm backward", 0, [&] {
      inner_.adaptive_norm_backward(s, x, gain, scale, inverse, d_y, d_x, d_gain, d_shift, d_scale, partial);
    });
  }
  void gated_add(sequence_shape s, float const* x, float const* a, float const* gate, float* y) const override {
    to_.measure("element by element", "gated add", 0, [&] { inner_.gated_add(s, x, a, gate, y); });
  }
  void gated_add_backward(sequence_shape s, float const* a, float const* gate, float const* d_y, float* d_a,
                          float* d_gate, float* partial) const override {
    to_.measure("element by element", "gated add backward", 0,
                [&] { inner_.gated_add_backward(s, a, gate, d_y, d_a, d_gate, partial); });
  }
  void layer_norm(std::int64_t rows, std::int64_t n, double epsilon, float const* x, float const* gain,
                  float const* bias, float* y, float* statistics) const override {
    to_.measure("norms", "layer norm", 0, [&] { inner_.layer_norm(rows, n, epsilon, x, gain, bias, y, statistics); });
  }
  void layer_norm_backward(std::int64_t rows, std::int64_t n, float const* x, float const* gain,
                           float const* statistics, float const* d_y, float* d_x, float* d_gain, float* d_bias,
                           float* partial) const override {
    to_.measure("norms", "layer norm backward", 0,
                [&] { inner_.layer_norm_backward(rows, n, x, gain, statistics, d_y, d_x, d_gain, d_bias, partial); });
  }
  void add_row(std::int64_t rows, std::int64_t n, float const* row, float* y) const override {
    to_.measure("element by element", "add row", 0, [&] { inner_.add_row(rows, n, row, y); });
  }
  void sum_rows(std::int64_t rows, std::int64_t n, float const* d_y, float* d_row, float* partial) const override {
    to_.measure("element by element", "sum rows", 0, [&] { inner_.sum_rows(rows, n, d_y, d_row, partial); });
  }
  void silu(std::int64_t count, float const* x, float* y) const override {
    to_.measure("element by element", "silu", 0, [&] { inner_.silu(count, x, y); });
  }
  void silu_backward(std::int64_t count, float const* x, float const* d_y, float* d_x) const override {
    to_.measure("element by element", "silu backward", 0, [&] { inner_.silu_backward(count, x, d_y, d_x); });
  }
  void rotate(head_shape s, std::int64_t rotated, float const* rotary, bool backwards, float* qkv) const override {
    to_.measure("norms", "rotation", 0, [&] { inner_.rotate(s, rotated, rotary, backwards, qkv); });
  }
  void squared_error(std::int64_t rows, std::int64_t n, float const* target, float const* row_weight,
                     float const* channel_weight, float* prediction, float* loss) const override {
    to_.measure("embedding and loss", "squared error", 0,
                [&] { inner_.squared_error(rows, n, target, row_weight, channel_weight, prediction, loss); });
  }

 private:
  dit_ops<float> const& inner_;
  op_profile& to_;
};

}  // namespace

std::string site_name(attention_shape const& s) {
  attention_mask const m = s.mask;
  std::string const mask = m.left != lanewise::unbounded ? "window " + std::to_string(m.left)
                           : m.right == 0                ? "causal"
                                                         : "full";
  return mask + " " + std::to_string(s.queries) + "x" + std::to_string(s.keys) + ", " + std::to_string(s.q_heads) +
         "/" + std::to_string(s.kv_heads) + " heads of " + std::to_string(s.head_dim);
}

double profile_report::total() const {
  double sum = between;
  for (op_time const& t : ops) sum += t.seconds;
  return sum;
}

std::size_t op_profile::row_of(char const* group, std::string const& name) {
  auto const [at, is_new] = index_.emplace(std::pair(group, name), rows_.size());
  if (is_new) rows_.push_back({group, name});
  order_.push_back(at->second);
  return at->second;
}

profile_report op_profile::read() {
  std::vector<double> const laps = watch_->laps();
  profile_report r{.ops = rows_};
  for (std::size_t i = 0; i < laps.size(); ++i)  // a call, then the pause after it
    (i % 2 == 0 ? r.ops[order_[i / 2]].seconds : r.between) += laps[i];
  clear();
  std::map<std::string, double> groups;
  for (op_time const& t : r.ops) groups[t.group] += t.seconds;
  std::ranges::sort(r.ops, [&](op_time const& a, op_time const& b) {
    return std::tuple(-groups[a.group], a.group, -a.seconds) < std::tuple(-groups[b.group], b.group, -b.seconds);
  });
  return r;
}

void op_profile::clear() {
  watch_->laps();
  rows_.clear();
  index_.clear();
  order_.clear();
}

profiled_device::profiled_device(device& inner)
    : inner_(&inner), profile_(inner.make_stopwatch()), op_(std::make_unique<profiled_ops>(inner.op(), profile_)),
      dit_(std::make_unique<profiled_dit_ops>(inner.dit(), profile_)) {}
profiled_device::~profiled_device() = default;
ops<float> const& profiled_device::op() const { return *op_; }
dit_ops<float> const& profiled_device::dit() const { return *dit_; }

}  // namespace trainer
