// The bodies behind engine.hpp's declarations; each engine_*.cpp includes this and names its instances.
#pragma once

#include "engine.hpp"

namespace parity {

template <lanewise::precision P, class F>
lanewise::status forward_of(problem const& p, outputs& out, lanewise::on_cpu on, F const& f) {
  return dispatch_head_dim(head_dims_of<P>{}, p.q.size.head_dim, [&]<int D>() {
    if (p.empty_lse == lanewise::empty_lse::zero)
      return call_forward<lanewise::config{.head_dim = D, .precision = P}>(p, out, on, f);
    if constexpr (D == 64)
      return call_forward<lanewise::config{
          .head_dim = D, .precision = P, .empty_lse = lanewise::empty_lse::minus_infinity}>(p, out, on, f);
    else
      return lanewise::fail(lanewise::status_code::unsupported,
                            "parity has empty_lse minus_infinity at head dim 64 only, not ", D);
  });
}

template <lanewise::precision P, lanewise::gradient_type G, class F>
lanewise::status backward_of(problem const& p, outputs& out, lanewise::on_cpu on, F const& f) {
  return dispatch_head_dim(head_dims_of<P, G>{}, p.q.size.head_dim, [&]<int D>() {
    return call_backward<lanewise::config{.head_dim = D, .precision = P, .gradient = G}>(p, out, on, f);
  });
}

}  // namespace parity
