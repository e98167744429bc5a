// Checks that variants with parameters share: a parameter's extents and its gradient's memory.
#pragma once

#include <cstdint>

#include "../checks.hpp"
#include "../status.hpp"
#include "../variant.hpp"

namespace lanewise::detail {

/// A parameter view fits a shape: each extent is 1 or the given one. `most` is what [batch, head, q, k] allow.
template <class T>
constexpr status check_parameter(char const* name, parameter_view<T> const& p, shape most) {
  if (!p) return fail(status_code::null_view, name, " is null");
  constexpr char const* axes[4] = {"batch", "head", "q", "k"};
  std::int32_t const extent[4] = {most.batch, most.heads, most.q, most.k};
  for (int i = 0; i < 4; ++i) {
    if (p.size[i] == 1 || p.size[i] == extent[i]) continue;
    if (extent[i] == 1)
      return fail(status_code::bad_extent, name, ": extent ", p.size[i], " along ", axes[i], " must be 1");
    return fail(status_code::bad_extent, name, ": extent ", p.size[i], " along ", axes[i], " is neither 1 nor ",
                extent[i]);
  }
  return {};
}

/// A gradient that is wanted has its parameter's extents and an element of its own for each.
template <class T>
status check_parameter_gradient(char const* name, parameter_view<float> const& d, parameter_view<T> const& p) {
  if (!d) return {};
  for (int i = 0; i < 4; ++i)
    if (d.size[i] != p.size[i])
      return fail(status_code::bad_extent, name, " is [", d.size[0], ", ", d.size[1], ", ", d.size[2], ", ", d.size[3],
                  "], its parameter is [", p.size[0], ", ", p.size[1], ", ", p.size[2], ", ", p.size[3], "]");
  return check_own_elements(name, d.size, d.stride);
}

}  // namespace lanewise::detail
