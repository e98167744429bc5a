// What mirrored base weights may change over twelve epochs of an adapter, the same on every device.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace test {

/// Stored in bf16 and multiplied in f32 is f32 to the bit; multiplied in bf16 is not, but ends beside it. `start`
/// takes options of lm and gives a started_run of an adapter over a trained base, whose numbers bf16 has.
template <class Start>
void check_mirrors_over_twelve_epochs(Start const& start) {
  for (std::string const kind : {"lora", "lokr"}) {
    auto const epochs = [&](std::string const& mirror) {
      auto r = start(std::vector<std::string>{"--adapter", kind, "--rank", "4", "--mirror", mirror, "--steps", "96"});
      REQUIRE(r.trainer.windows_per_epoch() * 12 <= 96 * r.s.batch);
      std::vector<double> const losses = r.steps(1, 96);
      return std::pair(losses, r.weights());
    };
    auto const f32 = epochs("f32");
    CHECK(epochs("bf16-f32") == f32);
    auto const bf16 = epochs("bf16");
    CHECK(bf16.first != f32.first);
    CHECK(std::abs(bf16.first.back() - f32.first.back()) < 0.1);
  }
}

}  // namespace test
