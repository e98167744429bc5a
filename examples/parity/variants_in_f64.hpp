// How the reference evaluates a switched variant: in f64, where it is on.
#pragma once

#include <lanewise/reference.hpp>

#include "variants.hpp"

template <class F>
struct lanewise::reference::in_f64<parity::switched<F>> {
  static double score(parity::switched<F> const& f, double s, position at) {
    return f.on ? in_f64<F>::score(f.f, s, at) : s;
  }
  static double grad(parity::switched<F> const& f, double s, position at) {
    return f.on ? in_f64<F>::grad(f.f, s, at) : 1;
  }
  template <int I>
  static double factor(parity::switched<F> const& f, double s, position at) {
    return in_f64<F>::template factor<I>(f.f, s, at);
  }
};
