// The argument checks of a call, on type-erased tensors: one place for every rule, the offending numbers in the text.
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.hpp"
#include "tensor.hpp"

namespace lanewise::detail {

/// A view without its element type.
struct tensor {
  char const* name;
  std::uintptr_t data;  ///< address of element 0; 0 when not given
  std::size_t element;  ///< bytes of one element
  extents size;
  strides stride;
};

template <class T>
tensor describe(char const* name, view<T> const& v) {
  return {name, reinterpret_cast<std::uintptr_t>(v.data), sizeof(T), v.size, v.stride};
}

/// The scalars of a call.
struct scalars {
  int head_dim, gqa_ratio;
  float scale;
};

status check_forward(scalars const& c, tensor const& q, tensor const& k, tensor const& v, tensor const& o, tensor const& lse) noexcept;
status check_backward(scalars const& c, tensor const& q, tensor const& k, tensor const& v, tensor const& o, tensor const& lse,
                      tensor const& d_o, tensor const& d_lse, tensor const& d_q, tensor const& d_k, tensor const& d_v) noexcept;

}  // namespace lanewise::detail
