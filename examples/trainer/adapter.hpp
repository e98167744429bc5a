// Low-rank changes of a frozen matrix, applied to the activations and never to the matrix: dW is not made.
//
//   LoRA   dW = scale B A                       A [r, in], B [out, r]                          Hu et al. 2021
//   LoKR   dW = scale kron(w1, w2)              w1 [out_l, in_m], w2 [out_k, in_n]              Yeh et al. 2023
//   (LyCORIS)
//          dW[l out_k + k, m in_n + n] = scale w1[l, m] w2[k, n],  w2 = w2_a w2_b where it is large
//
// Both are a chain of two or three legs. A row of tokens is viewed as [groups, channels]; a product leg multiplies the
// channels by a matrix, over all tokens and groups at once, and the mixing leg combines the groups by w1. LoKR's mixing
// leg may stand anywhere in the chain, since it commutes with the products: where it stands, `groups x channels`
// numbers of a token are read and written without arithmetic to speak of, so it stands where the channels are fewest.
//
// Nothing is kept for the backward but x: what the legs pass on is computed again, at a fraction 1 / out_l of the base
// matrix's product or less, since the memory of a step is what bounds its length.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "ops.hpp"
#include "parameters.hpp"
#include "step_memory.hpp"

namespace trainer {

enum class adapter_kind { none, lora, lokr };

struct adapter_settings {
  adapter_kind kind = adapter_kind::none;
  std::int64_t dim = 16;    ///< rank of LoRA, and of LoKR's w2_a w2_b
  double alpha = 0;         ///< scale = alpha / dim; 0: dim
  std::int64_t factor = 8;  ///< LoKR: the largest first factor of a side; -1: as near the root as possible
  bool operator==(adapter_settings const&) const = default;
};

/// d = first * second with first <= second: {factor, d / factor} where factor divides d, else with the largest first of
/// at most `factor`. LyCORIS's rule, which decides the shapes of what is stored.
std::pair<std::int64_t, std::int64_t> factorization(std::int64_t d, std::int64_t factor);

/// Where LoKR's mixing leg stands: after w2's legs, between w2_b and w2_a, or before them.
enum class lokr_order { w2, mid, w1 };

/// The sizes of a LoKR adapter for a projection in -> out.
struct lokr_shape {
  std::int64_t in_m, in_n, out_l, out_k, dim;
  bool factorised;  ///< w2 is stored as w2_a [out_k, dim] and w2_b [dim, in_n], iff dim < max(out_k, in_n) / 2

  lokr_shape(std::int64_t in, std::int64_t out, std::int64_t dim, std::int64_t factor);
  /// The order with the fewest channels at the mixing leg: out_k, dim or in_n. The first of equals in that order.
  lokr_order cheapest_order() const;
};

/// The adapter of one projection.
class adapter {
 public:
  /// Appends the adapter's tensors to `list`, named `module` and then lora_A.weight, lora_B.weight; or lokr_w1,
  /// lokr_w2; or lokr_w1, lokr_w2_a, lokr_w2_b. order: the cheapest where it is not given; mid needs a factorised w2.
  adapter(adapter_settings const& settings, std::int64_t in, std::int64_t out, std::string const& module,
          parameter_list& list);
  adapter(adapter_settings const& settings, std::int64_t in, std::int64_t out, std::string const& module,
          parameter_list& list, lokr_order order);

  std::string const& module() const { return module_; }
  /// alpha / dim; 1 for a LoKR of two whole matrices, whatever alpha is.
  double scale() const { return scale_; }
  /// Contractions that a forward takes: 2 or 3, whatever the number of tokens.
  int legs() const { return count_; }

  /// Draws what LyCORIS and PEFT draw, U(-1, 1) / sqrt(columns), for all but the last tensor, which is 0: dW is exactly
  /// 0 at the start. seed and index choose the numbers.
  template <class T>
  void initialise(std::uint64_t seed, std::uint64_t index, T* trained) const;

  /// y[rows, out] += dW x[rows, in]; rows of y lie y_stride apart. trained: the array that `list` describes.
  template <class T>
  void forward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, T const* trained, T* y,
               std::int64_t y_stride) const;

  /// d_x[rows, in] += dW^T d_y, unless null; gradients, laid out as `trained`, are added to.
  template <class T>
  void backward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, T const* trained, T const* d_y,
                std::int64_t d_y_stride, T* d_x, T* gradients) const;

 private:
  /// [in_groups, in_channels] -> [out_groups, out_channels] of every token; one of the two pairs is equal.
  struct leg {
    bool mixes;
    std::int64_t weight;  ///< offset of [out_channels, in_channels], or of [out_groups, in_groups]
    std::int64_t in_groups, in_channels, out_groups, out_channels;
    std::int64_t in() const { return in_groups * in_channels; }
    std::int64_t out() const { return out_groups * out_channels; }
    /// A product's rows, where all groups of all tokens lie evenly apart in what it writes; else they are grouped.
    bool is_even(std::int64_t stride) const { return out_groups == 1 || stride == out(); }
    std::int64_t step(std::int64_t stride) const { return out_groups == 1 ? stride : out_channels; }
  };
  struct tensor {
    std::int64_t offset, rows, columns;
    bool drawn;
  };

  void build_lora(std::int64_t rank, parameter_list& list);
  void build_lokr(lokr_shape const& s, lokr_order order, parameter_list& list);
  std::int64_t add(char const* name, std::int64_t rows, std::int64_t columns, bool drawn, parameter_list& list);

  template <class T>
  void leg_forward(ops<T> const& op, leg const& l, std::int64_t rows, T scale, T const* x, T const* trained, T beta,
                   T* y, std::int64_t y_stride) const;
  template <class T>
  void leg_backward(ops<T> const& op, step_memory& memory, leg const& l, std::int64_t rows, T scale, T const* x,
                    T const* trained, T const* d_y, std::int64_t d_y_stride, T beta, T* d_x, T* gradients) const;

  std::string module_;
  std::int64_t in_, out_;
  double scale_;
  int count_ = 0, tensor_count_ = 0;
  std::array<leg, 3> legs_;
  std::array<tensor, 3> tensors_;
};

}  // namespace trainer
