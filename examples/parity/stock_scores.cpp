// Stock scores and sinks as types, and a variant of a user's.
#include <cmath>

#include "stock_case.hpp"

namespace parity {

namespace {

/// The variant at the head of variant.hpp, with f64 overloads so that the reference evaluates it in f64.
struct capped_window {
  float cap;
  int width;
  bool operator()(lanewise::position at) const { return at.k <= at.q && at.q - at.k < width; }
  float operator()(float s, lanewise::position) const { return cap * std::tanh(s / cap); }
  float grad(float s, lanewise::position) const {
    float const t = std::tanh(s / cap);
    return 1 - t * t;
  }
  double operator()(double s, lanewise::position) const { return cap * std::tanh(s / cap); }
  double grad(double s, lanewise::position) const {
    double const t = std::tanh(s / cap);
    return 1 - t * t;
  }
};

parameter filled(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t k, float factor, float shift) {
  parameter x(b, h, q, k, true);
  for (std::size_t i = 0; i < x.value->size(); ++i) (*x.value)[i] = shift + factor * float(normal(7, i));
  return x;
}

}  // namespace

std::vector<case_result> run_stock_scores(grid_options const& o, std::uint64_t seed) {
  std::vector<case_result> all;
  stock_cases<true>(all, "softcap", o, seed, 200, [](problem&, parameter*&) { return lanewise::softcap{2}; });
  stock_cases<true>(all, "bias", o, seed, 200, [](problem& p, parameter*& trained) {
    p.bias = filled(1, p.q.size.heads, p.q.size.sequence, p.k.size.sequence, 1, 0);
    trained = &p.bias;
    return lanewise::bias{p.bias.values(), p.bias.gradients()};
  });
  stock_cases(all, "alibi_bottom_right", o, seed, 200, [](problem& p, parameter*& trained) {
    p.slope = filled(1, p.q.size.heads, 1, 1, 0.01f, 0.05f);
    trained = &p.slope;
    return lanewise::alibi_bottom_right{p.slope.values(), p.slope.gradients()};
  });
  stock_cases(all, "sink", o, seed, 200, [](problem& p, parameter*& trained) {
    p.logit = filled(1, p.q.size.heads, 1, 1, 1, 3);
    trained = &p.logit;
    return lanewise::sink{p.logit.values(), p.logit.gradients()};
  });
  stock_cases(all, "combine: softcap, bias, causal", o, seed, 200, [](problem& p, parameter*& trained) {
    p.bias = filled(p.q.size.batch, 1, 1, p.k.size.sequence, 1, 0);
    trained = &p.bias;
    return lanewise::combine{lanewise::softcap{3}, lanewise::bias{p.bias.values(), p.bias.gradients()},
                             lanewise::causal_bottom_right{}};
  });
  stock_cases(all, "a user's capped_window", o, seed, 150, [](problem&, parameter*&) { return capped_window{2, 60}; });
  return all;
}

}  // namespace parity
