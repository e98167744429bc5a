// The variants that tests and benchmarks instantiate: the stock ones, a user's own, and two combinations.
#pragma once

#include <lanewise/variants.hpp>

namespace testing {

using namespace lanewise;

/// A user's own variant: a capped causal window with its backward.
struct capped_window {
  float cap = 2.f;
  std::int32_t width = 20;
  LANEWISE_HD bool operator()(position at) const { return at.k <= at.q && at.q - at.k < width; }
  LANEWISE_HD float operator()(float s, position) const { return cap * tanh_f32(s / cap); }
  LANEWISE_HD float grad(float s, position) const {
    float const t = tanh_f32(s / cap);
    return 1.f - t * t;
  }
};

using biased_causal = combine<bias, causal_top_left>;
using sink_window = combine<window, sink>;

using causal_documents = documents<causal_bottom_right>;

}  // namespace testing
