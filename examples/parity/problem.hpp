// One call of the engine with its sizes and types known at run time, and what it returned.
#pragma once

#include <cstdint>
#include <lanewise/attention.hpp>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tensors.hpp"
#include "variants_in_f64.hpp"

namespace parity {

/// What the gradient of a parameter holds before an accumulating run.
inline constexpr float parameter_prior = 0.5f;

/// A parameter of a variant over [batch, heads, q, k] with extents 1 where it broadcasts, and its gradient.
struct parameter {
  std::int64_t size[4] = {1, 1, 1, 1};
  std::shared_ptr<std::vector<float>> value{}, gradient{};

  parameter() = default;
  parameter(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k, bool with_gradient)
      : size{b, h, q, k}, value(std::make_shared<std::vector<float>>(b * h * q * k)) {
    if (with_gradient)
      gradient = std::make_shared<std::vector<float>>(b * h * q * k, std::numeric_limits<float>::quiet_NaN());
  }
  explicit operator bool() const { return value != nullptr; }
  lanewise::parameter_view<float const> values() const { return {value->data(), size[0], size[1], size[2], size[3]}; }
  lanewise::parameter_view<float> gradients() const {
    if (!gradient) return {};
    return {gradient->data(), size[0], size[1], size[2], size[3]};
  }
};

/// The arrays that masks point at.
struct mask_data {
  std::vector<std::int32_t> key_lengths{}, documents_q{}, documents_k{};
  std::vector<std::uint32_t> key_bits{};
};

enum class device { cpu, cuda };

struct problem {
  array q{}, k{}, v{}, d_o{}, d_lse{};  ///< d_o left out: forward only
  choice variant{};
  float scale = 0;
  lanewise::precision precision = lanewise::precision::f32;
  lanewise::gradient_type gradient = lanewise::gradient_type::storage;
  lanewise::empty_lse empty_lse = lanewise::empty_lse::zero;
  bool accumulate = false;
  bool normal_inputs = false;          ///< q, k, v and d_o are N(0, 1), for which the f32 bar holds
  parameter slope{}, bias{}, logit{};  ///< what variant's alibi, bias and sink point at
  std::shared_ptr<mask_data> masks = std::make_shared<mask_data>();
  parity::device device = parity::device::cpu;

  number storage() const { return q.type; }
  number gradient_storage() const { return gradient == lanewise::gradient_type::f32 ? number::f32 : q.type; }
  extents lse_size() const { return {q.size.batch, q.size.sequence, q.size.heads, 1}; }
  bool backward() const { return bool(d_o); }

  /// Switches key_padding_bits on with kept(b, k) for every key.
  template <class Kept>
  void keep_keys(Kept const& kept) {
    std::int64_t const keys = k.size.sequence, words = (keys + 31) / 32;
    masks->key_bits.assign(k.size.batch * words, 0);
    for (std::int64_t b = 0; b < k.size.batch; ++b)
      for (std::int64_t j = 0; j < keys; ++j)
        masks->key_bits[b * words + j / 32] |= std::uint32_t(kept(b, j) ? 1 : 0) << (j % 32);
    variant.key_padding_bits = {true, {masks->key_bits.data(), words}};
  }
};

struct outputs {
  array o{}, lse{}, d_q{}, d_k{}, d_v{};
  std::string forward_kernel{}, backward_kernel{};
};

/// The type that a precision stores q, k, v, o and d_o in.
number storage_of(lanewise::precision p);

/// Outputs of the right sizes, every byte 0xff.
outputs make_outputs(problem const& p);

/// Runs forward, and backward where d_o is given, on the problem's device; `on` says how where that is the CPU. Throws
/// std::runtime_error with the status where the engine refuses. The gradients of parameters go to their `gradient`,
/// where they have one.
void run(problem const& p, outputs& out, lanewise::on_cpu on);

/// Head dims that run() is compiled for, with these types.
std::vector<int> compiled_head_dims(device where, lanewise::precision p, lanewise::gradient_type g);

/// The refusal of a problem whose types and head dim are not among the `compiled` ones.
std::runtime_error not_compiled(problem const& p, std::vector<int> const& compiled, char const* list);

/// The reference on the same problem: exact, or rounding as the precision may on its device.
lanewise::reference::result exact_reference(problem const& p, int threads);
lanewise::reference::result rounded_reference(problem const& p, int threads);

}  // namespace parity
