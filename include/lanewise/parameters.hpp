// The parameters of a variant, taken together: walking them, and checking where their gradients go. Included by the
// files that define a backend; attention.hpp stays without <utility>.
#pragma once

#include <utility>

#include "attention.hpp"

namespace lanewise {

/// call.operator()<I>() for each parameter of F, in order.
template <class F, class Call>
constexpr void for_each_parameter(Call const& call) {
  [&]<int... I>(std::integer_sequence<int, I...>) { (call.template operator()<I>(), ...); }
  (std::make_integer_sequence<int, parameter_count<F>>{});
}

/// Gradients of parameters lie apart from every tensor of the call and from each other.
template <config C, class F>
status check_parameters(backward_args<C> const& a, F const& f) noexcept {
  detail::tensor const tensors[] = {detail::describe("q", a.q),         detail::describe("k", a.k),
                                    detail::describe("v", a.v),         detail::describe("o", a.o),
                                    detail::describe("lse", a.lse),     detail::describe("d_o", a.d_o),
                                    detail::describe("d_lse", a.d_lse), detail::describe("d_q", a.d_q),
                                    detail::describe("d_k", a.d_k),     detail::describe("d_v", a.d_v)};
  status result;
  for_each_parameter<F>([&]<int I> {
    detail::byte_range const d = detail::range_of(parameter_gradient<I>(f));
    for (detail::tensor const& t : tensors)
      if (result) result = detail::check_apart(d, detail::range_of(t), t.name);
    for_each_parameter<F>([&]<int J> {
      if constexpr (J < I)
        if (result) result = detail::check_apart(d, detail::range_of(parameter_gradient<J>(f)), "another parameter's");
    });
  });
  return result;
}

}  // namespace lanewise
