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

/// A window that writes down every pair it is asked about: 1 in seen[q, k]. A kernel asks about each pair of a tile
/// that it visits and about no other, so what is seen are the visited tiles.
struct recorded_window {
  window inner{};
  unsigned char* seen = nullptr;  ///< [q, keys] where the call runs; left out: nothing is written
  std::int64_t keys = 0;
  LANEWISE_HD bool operator()(position at) const {
    record(at);
    return inner(at);
  }
  LANEWISE_HD float operator()(float s, position at) const {
    record(at);
    return s;
  }
  LANEWISE_HD float grad(float, position) const { return 1.f; }
  LANEWISE_HD cover cover_of(block b) const { return inner.cover_of(b); }

 private:
  LANEWISE_HD void record(position at) const {
    if (seen) seen[at.q * keys + at.k] = 1;
  }
};

using biased_causal = combine<bias, causal_top_left>;
using sink_window = combine<window, sink>;

using causal_documents = documents<causal_bottom_right>;

}  // namespace testing
