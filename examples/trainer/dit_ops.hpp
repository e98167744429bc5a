// The layers that only the diffusion transformer has, beside those of ops.hpp and under the same rules: dense row-major
// tensors, gradients of inputs written, gradients of parameters added to, sums cut by the shape alone. A row is a
// token; a batch element has `sequence` of them, and row r belongs to element r / sequence.
//
//   adaptive_norm   y = (1 + scale) g x / sqrt(mean(x^2) + eps) + shift     shift and scale of the batch element
//                                                                           (adaLN: Peebles and Xie 2023)
//   gated_add       y = x + gate a                                          gate of the batch element
//   layer_norm      y = g (x - mean) / sqrt(variance + eps) + bias          Ba, Kiros, Hinton 2016
//   silu            y = x / (1 + exp(-x))
//   rotate          the rotary embedding alone, on the first numbers of each head
//   squared_error   loss = mean(w (prediction - target)^2)
#pragma once

#include <cstdint>

#include "ops.hpp"

namespace trainer {

/// Rows of a batch, and what the batch elements' vectors look like: element b's lie at pointer + b * stride.
struct sequence_shape {
  std::int64_t batch, sequence, n, stride;
  constexpr std::int64_t rows() const { return batch * sequence; }
  /// Pieces that a batch element's rows are cut into.
  constexpr std::int64_t pieces() const { return workers::piece_count(sequence, row_grain); }
  /// Elements of the partial sums of `vectors` vectors of n elements.
  constexpr std::int64_t partial_count(std::int64_t vectors) const { return batch * pieces() * vectors * n; }
};

template <class T>
class dit_ops {
 public:
  virtual ~dit_ops() = default;

  /// y[rows, n]; inverse[rows] receives 1 / sqrt(mean(x^2) + epsilon).
  virtual void adaptive_norm(sequence_shape s, double epsilon, T const* x, T const* gain, T const* shift,
                             T const* scale, T* y, T* inverse) const = 0;

  /// d_x += ; d_gain += (null: frozen); d_shift and d_scale of each batch element are written. partial:
  /// s.partial_count(3).
  virtual void adaptive_norm_backward(sequence_shape s, T const* x, T const* gain, T const* scale, T const* inverse,
                                      T const* d_y, T* d_x, T* d_gain, T* d_shift, T* d_scale, T* partial) const = 0;

  /// y[rows, n] = x + gate a.
  virtual void gated_add(sequence_shape s, T const* x, T const* a, T const* gate, T* y) const = 0;

  /// d_a = gate d_y; d_gate of each batch element is written. The gradient of x is d_y. partial: s.partial_count(1).
  virtual void gated_add_backward(sequence_shape s, T const* a, T const* gate, T const* d_y, T* d_a, T* d_gate,
                                  T* partial) const = 0;

  /// y[rows, n]; statistics[rows, 2] receives mean and 1 / sqrt(variance + epsilon).
  virtual void layer_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain, T const* bias,
                          T* y, T* statistics) const = 0;

  /// d_x += ; d_gain and d_bias += (null: frozen). partial: partial_count(rows, 2 n).
  virtual void layer_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* statistics,
                                   T const* d_y, T* d_x, T* d_gain, T* d_bias, T* partial) const = 0;

  /// y[rows, n] += row[n].
  virtual void add_row(std::int64_t rows, std::int64_t n, T const* row, T* y) const = 0;

  /// d_row[n] += the sum of d_y's rows. partial: partial_count(rows, n).
  virtual void sum_rows(std::int64_t rows, std::int64_t n, T const* d_y, T* d_row, T* partial) const = 0;

  virtual void silu(std::int64_t count, T const* x, T* y) const = 0;
  virtual void silu_backward(std::int64_t count, T const* x, T const* d_y, T* d_x) const = 0;

  /// Turns the first `rotated` numbers of every query and key head of qkv[tokens, all heads, n] in place; pairs are
  /// (i, i + rotated / 2). rotary: fill_rotary_table(sequence, rotated). Backwards it undoes itself, which is also the
  /// gradient's way.
  virtual void rotate(head_shape s, std::int64_t rotated, T const* rotary, bool backwards, T* qkv) const = 0;

  /// loss[rows] = mean over n of channel_weight (prediction - target)^2, without row_weight; prediction becomes
  /// row_weight[row] d loss[row] / d prediction. A row of weight 0 has loss 0 and gradient 0, whatever it holds.
  virtual void squared_error(std::int64_t rows, std::int64_t n, T const* target, T const* row_weight,
                             T const* channel_weight, T* prediction, T* loss) const = 0;
};

template <class T>
class cpu_dit_ops final : public dit_ops<T> {
 public:
  explicit cpu_dit_ops(workers on) : on_(on) {}

  void adaptive_norm(sequence_shape s, double epsilon, T const* x, T const* gain, T const* shift, T const* scale, T* y,
                     T* inverse) const override;
  void adaptive_norm_backward(sequence_shape s, T const* x, T const* gain, T const* scale, T const* inverse,
                              T const* d_y, T* d_x, T* d_gain, T* d_shift, T* d_scale, T* partial) const override;
  void gated_add(sequence_shape s, T const* x, T const* a, T const* gate, T* y) const override;
  void gated_add_backward(sequence_shape s, T const* a, T const* gate, T const* d_y, T* d_a, T* d_gate,
                          T* partial) const override;
  void layer_norm(std::int64_t rows, std::int64_t n, double epsilon, T const* x, T const* gain, T const* bias, T* y,
                  T* statistics) const override;
  void layer_norm_backward(std::int64_t rows, std::int64_t n, T const* x, T const* gain, T const* statistics,
                           T const* d_y, T* d_x, T* d_gain, T* d_bias, T* partial) const override;
  void add_row(std::int64_t rows, std::int64_t n, T const* row, T* y) const override;
  void sum_rows(std::int64_t rows, std::int64_t n, T const* d_y, T* d_row, T* partial) const override;
  void silu(std::int64_t count, T const* x, T* y) const override;
  void silu_backward(std::int64_t count, T const* x, T const* d_y, T* d_x) const override;
  void rotate(head_shape s, std::int64_t rotated, T const* rotary, bool backwards, T* qkv) const override;
  void squared_error(std::int64_t rows, std::int64_t n, T const* target, T const* row_weight, T const* channel_weight,
                     T* prediction, T* loss) const override;

 private:
  workers on_;
};

}  // namespace trainer
