// Views: a pointer, extents and 64-bit element strides. They own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "host_device.hpp"

namespace lanewise {

/// Sizes of one tensor. An LSE has head_dim 1.
struct extents {
  std::int64_t batch = 0, sequence = 0, heads = 0, head_dim = 0;
  constexpr bool operator==(extents const&) const = default;
  constexpr std::int64_t count() const { return batch * sequence * heads * head_dim; }
};

/// Distance in elements between neighbours along batch, sequence and heads; along head_dim it is `inner`, which must
/// be 1 wherever head_dim > 1 (a call refuses anything else, with the number).
struct strides {
  std::int64_t batch = 0, sequence = 0, heads = 0, inner = 1;
  constexpr bool operator==(strides const&) const = default;
};

/// Strides of a dense [batch, sequence, heads, head_dim] tensor.
constexpr strides dense(extents e) {
  return {e.sequence * e.heads * e.head_dim, e.heads * e.head_dim, e.head_dim, 1};
}

/// A tensor [batch, sequence, heads, head_dim] in the caller's memory; `view{}` means "not given".
/// Inputs may have stride 0 (broadcast); outputs may not. Converting view<T> to view<T const> is free.
template <class T>
struct view {
  T* data = nullptr;
  extents size{};
  strides stride{};

  constexpr view() = default;
  constexpr view(T* data, extents size) : data(data), size(size), stride(dense(size)) {}
  constexpr view(T* data, extents size, strides stride) : data(data), size(size), stride(stride) {}
  template <class U>
  constexpr view(view<U> other) : size(other.size), stride(other.stride) {
    constexpr bool ok = std::is_convertible_v<U (*)[], T (*)[]>;
    static_assert(ok, "view: a const input is given as an output, or the element type differs from the config's");
    if constexpr (ok) data = other.data;
  }

  LANEWISE_HD constexpr explicit operator bool() const { return data != nullptr; }

  /// Address of the row (b, s, h): `head_dim` contiguous elements.
  LANEWISE_HD constexpr T* row(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return data + b * stride.batch + s * stride.sequence + h * stride.heads;
  }
};

/// A parameter tensor of a variant over [batch, head, q, k]; extent 1 broadcasts. Strides are in elements, any value
/// for inputs. `parameter_view{}` means "not given" (a gradient: not wanted).
template <class T>
struct parameter_view {
  T* data = nullptr;
  std::int64_t size[4] = {1, 1, 1, 1};
  std::int64_t stride[4] = {0, 0, 0, 0};

  constexpr parameter_view() = default;
  constexpr parameter_view(T* data, std::int64_t batch, std::int64_t heads, std::int64_t q, std::int64_t k)
      : data(data), size{batch, heads, q, k}, stride{heads * q * k, q * k, k, 1} {}
  constexpr parameter_view(T* data, std::int64_t const (&size)[4], std::int64_t const (&stride)[4])
      : data(data), size{size[0], size[1], size[2], size[3]}, stride{stride[0], stride[1], stride[2], stride[3]} {}
  template <class U>
    requires std::is_convertible_v<U (*)[], T (*)[]>
  constexpr parameter_view(parameter_view<U> o)
      : data(o.data),
        size{o.size[0], o.size[1], o.size[2], o.size[3]},
        stride{o.stride[0], o.stride[1], o.stride[2], o.stride[3]} {}

  LANEWISE_HD constexpr explicit operator bool() const { return data != nullptr; }

  /// The element that (b, h, q, k) shares with every position along a broadcast dimension.
  LANEWISE_HD constexpr T& at(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k) const {
    return data[(size[0] == 1 ? 0 : b * stride[0]) + (size[1] == 1 ? 0 : h * stride[1]) +
                (size[2] == 1 ? 0 : q * stride[2]) + (size[3] == 1 ? 0 : k * stride[3])];
  }
};

/// Scratch memory for one call, at least as large as the *_workspace function says and aligned to workspace_alignment.
struct workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};
inline constexpr std::size_t workspace_alignment = 128;

}  // namespace lanewise
