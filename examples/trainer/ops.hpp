// The layers that the models are written in, forward and backward. All tensors are dense and row-major; a row is a
// token. T is float in training; double is there so that tests can check every derivative by finite differences.
//
//   linear       y = x W^T (+ residual)                    W [out, in], as Hugging Face stores it
//   rms_norm     y = g x / sqrt(mean(x^2) + eps)           Zhang and Sennrich 2019
//   head_norm    rms_norm over each head, then the rotary embedding (Su et al. 2021), halves paired as in GPT-NeoX
//   swiglu       y = u * silu(z), z and u side by side     Shazeer 2020
//   cross_entropy  loss = -log softmax(logits)[target]
//
// Gradients of inputs are written, gradients of parameters are added to. Sums over rows go through partial sums of a
// fixed number of rows, so they do not depend on the number of threads.
#pragma once

#include <cstdint>

#include <lanewise/precision.hpp>

#include "attention_site.hpp"
#include "blas.hpp"
#include "workers.hpp"

namespace trainer {

inline constexpr double norm_epsilon = 1e-6;

/// Rows of one piece of work: many enough that a product packs its weights rarely, few enough to share out.
inline constexpr std::int64_t row_grain = 128;

/// Elements of the partial sums that a norm's backward needs for a gain of n elements.
constexpr std::int64_t partial_count(std::int64_t rows, std::int64_t n) {
  return workers::piece_count(rows, row_grain) * n;
}

/// A row whose target is `no_target` has loss 0 and gradient 0.
inline constexpr std::int32_t no_target = -1;

/// What head_norm reads and writes: token t's heads lie side by side in qkv, queries first, then keys, then values.
struct head_shape {
  std::int64_t tokens, sequence;      ///< token t is at position t % sequence
  std::int64_t q_heads, kv_heads, n;  ///< n: head_dim
  double epsilon = norm_epsilon;
  LANEWISE_HD constexpr std::int64_t normed_heads() const { return q_heads + kv_heads; }
  LANEWISE_HD constexpr std::int64_t all_heads() const { return q_heads + 2 * kv_heads; }
};

/// What mix reads and writes: a row of x holds in_groups groups of `channels` numbers, a row of y out_groups of them.
struct mix_shape {
  /// Rows of a partial sum of mix_weight_backward: 3000 rows give every multiprocessor of an H200 two or three.
  static constexpr std::int64_t grain = 8;
  std::int64_t rows, in_groups, out_groups, channels;
  constexpr std::int64_t pairs() const { return in_groups * out_groups; }
  constexpr std::int64_t pieces() const { return workers::piece_count(rows, grain); }
  /// Elements of those partial sums.
  constexpr std::int64_t partial_count() const { return pieces() * pairs(); }
};

/// Groups of numbers in a row, and how far apart they lie in the operands of a product.
struct group_steps {
  std::int64_t groups, a, b, c;
};

/// Bytes of scratch that rounded products take.
struct rounded_needs {
  std::size_t forward, backward;
};

/// Elements begin ... end-1 of a flat array of parameters, of one tensor; what one piece of the optimiser's work is.
struct segment {
  std::int64_t begin, end;
  bool decays;
};

/// One step of AdamW: w = keep w - rate m / (sqrt(v v_scale) + epsilon), keep for segments that decay.
struct adamw_rates {
  double clip;  ///< largest norm of the gradient
  float beta1, beta2, epsilon, rate, v_scale, keep;
};

/// Sines and cosines of the rotary embedding: table[position, 0 ... n/2-1] the cosines, then n/2 sines.
template <class T>
void fill_rotary_table(std::int64_t positions, std::int64_t n, double theta, T* table);

/// What a model is written in. Every pointer but those that say host is memory of the ops' device. Work is queued in
/// the order of the calls; download alone waits for it. With planning() nothing runs and no pointer is looked at.
template <class T>
class ops {
 public:
  virtual ~ops() = default;
  virtual bool planning() const = 0;

  /// x[count] on the device = the host's, and the reverse; the host's may be reused when the call returns.
  template <class U>
  void upload(std::int64_t count, U const* host, U* x) const {
    copy_in(std::size_t(count) * sizeof(U), host, x);
  }
  template <class U>
  void download(std::int64_t count, U const* x, U* host) const {
    copy_out(std::size_t(count) * sizeof(U), x, host);
  }

  /// x[count] = 0.
  virtual void zero(std::int64_t count, T* x) const = 0;

  /// y[rows, out] = x[rows, in] w[out, in]^T, plus residual[rows, out] unless null.
  virtual void linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* residual,
                      T* y) const = 0;

  /// d_x[rows, in] = d_y w;  d_w[out, in] += d_y^T x. Either may be null: not wanted.
  virtual void linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w,
                               T const* d_y, T* d_x, T* d_w) const = 0;

  /// The same two with a matrix that is stored in bf16 and what it meets rounded to bf16, sums in f32: what tensor
  /// cores compute. scratch: needs_of_rounded(rows, in, out).
  virtual rounded_needs needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const = 0;
  virtual void rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, lanewise::bf16 const* w,
                              T const* residual, T* y, void* scratch) const = 0;
  virtual void rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                                       T const* d_y, T* d_x, void* scratch) const = 0;

  /// y[rows, n] from x[rows, n]; inverse[rows] receives 1 / sqrt(mean(x^2) + epsilon) for the backward.
  virtual void rms_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain, T* y,
                        T* inverse) const = 0;

  /// d_x[rows, n] += gradient with respect to x; d_gain[n] += that of the gain. partial: partial_count(rows, n). For a
  /// frozen gain d_gain and partial are null.
  virtual void rms_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* inverse,
                                 T const* d_y, T* d_x, T* d_gain, T* partial) const = 0;

  /// qk[tokens, q_heads + kv_heads, n]: the queries and keys of qkv[tokens, all heads, n], normed with q_gain[n] and
  /// k_gain[n] while each head is contiguous, then rotated; where rotary is null, not. q_heads or kv_heads may be 0.
  /// inverse[tokens, q_heads + kv_heads] is for the backward.
  virtual void head_norm(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary, T* qk,
                         T* inverse) const = 0;

  /// Writes the query and key part of d_qkv; d_q_gain and d_k_gain [n] are added to. partial:
  /// partial_count(tokens, 2 n). For frozen gains d_q_gain, d_k_gain and partial are null.
  virtual void head_norm_backward(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary,
                                  T const* inverse, T const* d_qk, T* d_qkv, T* d_q_gain, T* d_k_gain,
                                  T* partial) const = 0;

  /// y[rows, n] = up * silu(gate) with gate_up[rows, 2 n]: gate, then up.
  virtual void swiglu(std::int64_t rows, std::int64_t n, T const* gate_up, T* y) const = 0;

  /// d_gate_up[rows, 2 n] from d_y[rows, n].
  virtual void swiglu_backward(std::int64_t rows, std::int64_t n, T const* gate_up, T const* d_y,
                               T* d_gate_up) const = 0;

  /// x[rows, n] = table[token]; tokens are 0 ... entries of table - 1.
  virtual void embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* table, T* x) const = 0;

  /// d_table[token] += d_x[row], rows in order.
  virtual void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* d_x,
                              T* d_table) const = 0;

  /// loss[rows] in nats; logits[rows, n] become weight * d loss / d logits.
  virtual void cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, T weight, T* logits,
                             T* loss) const = 0;

  /// c[m, n] = alpha a b + beta c; a is [m, k] or, transposed, [k, m]; b is [k, n] or [n, k]. ld*: distance between
  /// rows.
  virtual void product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a,
                       std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) const = 0;

  /// product of every group: a lies s.a apart from one to the next, b s.b and c s.c; where s.c is 0 the products are
  /// added up in c, one after the other. What is one product where the groups lie dense takes another shape in wider
  /// rows.
  virtual void grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n,
                               std::int64_t k, T alpha, T const* a, std::int64_t lda, T const* b, std::int64_t ldb,
                               T beta, T* c, std::int64_t ldc) const = 0;

  /// y[row, l, i] = alpha sum_m w[l, m] x[row, m, i] + beta y[row, l, i], with w [out_groups, in_groups]. Transposed, x
  /// has the out_groups and y the in_groups. Rows lie *_stride apart; with beta 0 y is not read.
  virtual void mix(mix_shape s, transpose t, T alpha, T const* w, T const* x, std::int64_t x_stride, T beta, T* y,
                   std::int64_t y_stride) const = 0;

  /// d_w[l, m] += alpha sum over rows and i of d_y[row, l, i] x[row, m, i]. partial: s.partial_count().
  virtual void mix_weight_backward(mix_shape s, T alpha, T const* d_y, std::int64_t d_y_stride, T const* x,
                                   std::int64_t x_stride, T* d_w, T* partial) const = 0;

  /// y[rows, n] = alpha x + beta y; rows lie *_stride apart; with beta 0 y is not read.
  virtual void add_columns(std::int64_t rows, std::int64_t n, T alpha, T const* x, std::int64_t x_stride, T beta, T* y,
                           std::int64_t y_stride) const = 0;

  /// y[count] = x.
  virtual void widen(std::int64_t count, lanewise::bf16 const* x, T* y) const = 0;

  /// *result = the root of the sum of x^2 over the segments, summed in double. squares: one double a segment.
  virtual void norm(std::int64_t segments, segment const* table, T const* x, double* squares, double* result) const = 0;

  /// One update of AdamW (adamw.hpp) with the gradient clipped by *norm; where that is not finite nothing changes.
  virtual void adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                            T const* gradients, T* weights, T* m, T* v) const = 0;

  /// What the site keeps and needs. Throws attn-unsupported when there is no kernel for its shape.
  virtual attention_needs attention(attention_site const& at) const = 0;

  /// o, and saved[attention(at).saved] for the backward. Both return the name of the kernel that ran.
  virtual char const* attention_forward(attention_site const& at, attention_inputs<T> const& in, lanewise::view<T> o,
                                        T* saved, void* scratch) const = 0;
  virtual char const* attention_backward(attention_site const& at, attention_inputs<T> const& in,
                                         lanewise::view<T const> o, T const* saved, lanewise::view<T const> d_o,
                                         attention_gradients<T> const& out, void* scratch) const = 0;

 private:
  virtual void copy_in(std::size_t bytes, void const* host, void* x) const = 0;
  virtual void copy_out(std::size_t bytes, void const* x, void* host) const = 0;
};

/// On the CPU: matrix products through OpenBLAS.
template <class T>
class cpu_ops : public ops<T> {
 public:
  explicit cpu_ops(workers on) : on_(on) {}
  bool planning() const override { return on_.planning(); }

  void zero(std::int64_t count, T* x) const override;
  void linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* residual,
              T* y) const override;
  void linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, T const* w, T const* d_y,
                       T* d_x, T* d_w) const override;
  rounded_needs needs_of_rounded(std::int64_t rows, std::int64_t in, std::int64_t out) const override;
  void rounded_linear(std::int64_t rows, std::int64_t in, std::int64_t out, T const* x, lanewise::bf16 const* w,
                      T const* residual, T* y, void* scratch) const override;
  void rounded_linear_backward(std::int64_t rows, std::int64_t in, std::int64_t out, lanewise::bf16 const* w,
                               T const* d_y, T* d_x, void* scratch) const override;
  void rms_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain, T* y,
                T* inverse) const override;
  void rms_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* inverse, T const* d_y,
                         T* d_x, T* d_gain, T* partial) const override;
  void head_norm(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary, T* qk,
                 T* inverse) const override;
  void head_norm_backward(head_shape s, T const* qkv, T const* q_gain, T const* k_gain, T const* rotary,
                          T const* inverse, T const* d_qk, T* d_qkv, T* d_q_gain, T* d_k_gain,
                          T* partial) const override;
  void swiglu(std::int64_t rows, std::int64_t n, T const* gate_up, T* y) const override;
  void swiglu_backward(std::int64_t rows, std::int64_t n, T const* gate_up, T const* d_y, T* d_gate_up) const override;
  void embed(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* table, T* x) const override;
  void embed_backward(std::int64_t rows, std::int64_t n, std::int32_t const* tokens, T const* d_x,
                      T* d_table) const override;
  void cross_entropy(std::int64_t rows, std::int64_t n, std::int32_t const* targets, T weight, T* logits,
                     T* loss) const override;
  void product(transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, T const* a,
               std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) const override;
  void grouped_product(group_steps s, transpose ta, transpose tb, std::int64_t m, std::int64_t n, std::int64_t k,
                       T alpha, T const* a, std::int64_t lda, T const* b, std::int64_t ldb, T beta, T* c,
                       std::int64_t ldc) const override;
  void mix(mix_shape s, transpose t, T alpha, T const* w, T const* x, std::int64_t x_stride, T beta, T* y,
           std::int64_t y_stride) const override;
  void mix_weight_backward(mix_shape s, T alpha, T const* d_y, std::int64_t d_y_stride, T const* x,
                           std::int64_t x_stride, T* d_w, T* partial) const override;
  void add_columns(std::int64_t rows, std::int64_t n, T alpha, T const* x, std::int64_t x_stride, T beta, T* y,
                   std::int64_t y_stride) const override;
  void widen(std::int64_t count, lanewise::bf16 const* x, T* y) const override;
  void norm(std::int64_t segments, segment const* table, T const* x, double* squares, double* result) const override;
  void adamw_update(std::int64_t segments, segment const* table, adamw_rates const& r, double const* norm,
                    T const* gradients, T* weights, T* m, T* v) const override;
  attention_needs attention(attention_site const& at) const override;
  char const* attention_forward(attention_site const& at, attention_inputs<T> const& in, lanewise::view<T> o, T* saved,
                                void* scratch) const override;
  char const* attention_backward(attention_site const& at, attention_inputs<T> const& in, lanewise::view<T const> o,
                                 T const* saved, lanewise::view<T const> d_o, attention_gradients<T> const& out,
                                 void* scratch) const override;

 private:
  void round_to_bf16(std::int64_t count, T const* x, T* y) const;
  void copy_in(std::size_t bytes, void const* host, void* x) const override;
  void copy_out(std::size_t bytes, void const* x, void* host) const override;
  workers on_;
};

}  // namespace trainer
