// y = x W^T (+ residual), with W frozen or trained, and with adapters on ranges of its rows. Matrices that share an
// input, such as q, k and v, are stacked: they are one product, and each has an adapter of its own.
//
// A frozen W may be stored in bf16 to halve what it takes ("mirror"); storage and arithmetic are two choices:
//
//   f32       stored in f32
//   bf16_f32  stored in bf16, made f32 for the length of one product
//   bf16      stored in bf16, and the activations that it meets are rounded to bf16 too, with sums in f32: what tensor
//             cores compute
//
// No other pair has a name: rounding the activations but not the matrix would lose accuracy and save nothing. The f32
// copy of a matrix does not outlive its product; the backward makes its own.
#pragma once

#include <cstdint>
#include <lanewise/precision.hpp>
#include <string>
#include <vector>

#include "adapter.hpp"
#include "ops.hpp"
#include "parameters.hpp"
#include "step_memory.hpp"

namespace trainer {

enum class mirror { f32, bf16, bf16_f32 };

/// A base matrix where it lies: `full` is read by mirror f32, `half` by the others.
template <class T>
struct base_matrix {
  T const* full;
  lanewise::bf16 const* half;
};

class projection {
 public:
  /// W [out, in] without adapters.
  projection(std::int64_t in, std::int64_t out, mirror storage = mirror::f32) : in_(in), out_(out), mirror_(storage) {}

  /// Gives rows first_row ... first_row + out - 1 of W an adapter, whose tensors are appended to `list`; kind none adds
  /// nothing.
  void adapt(adapter_settings const& settings, std::int64_t first_row, std::int64_t out, std::string const& module,
             parameter_list& list);

  std::int64_t in() const { return in_; }
  std::int64_t out() const { return out_; }

  struct adapted_rows {
    std::int64_t first_row;
    adapter change;
  };
  std::vector<adapted_rows> const& adapters() const { return adapters_; }

  /// y[rows, out] from x[rows, in], plus residual[rows, out] unless null. trained: what `list` describes.
  template <class T>
  void forward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, base_matrix<T> w, T const* trained,
               T const* residual, T* y) const;

  /// d_x[rows, in] is written, unless null; d_base[out, in] is added to, or null where W is frozen, which then takes no
  /// memory; gradients, laid out as `trained`, are added to.
  template <class T>
  void backward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, base_matrix<T> w,
                T const* trained, T const* d_y, T* d_x, T* d_base, T* gradients) const;

 private:
  template <class T>
  buffer<T> widened(ops<T> const& op, step_memory& memory, base_matrix<T> w) const;

  std::int64_t in_, out_;
  mirror mirror_;
  std::vector<adapted_rows> adapters_;
};

}  // namespace trainer
