// A trainer that has been started, with what it needs: its settings, a device, and a budget that nothing reaches.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device.hpp"
#include "trainee.hpp"

namespace test {

inline constexpr trainer::memory_budget plenty{std::size_t(1) << 33, 0};

template <class Settings, class Trainer>
struct started_run {
  Settings s;
  std::unique_ptr<trainer::device> on;
  Trainer trainer;

  template <class Data>
  started_run(Settings const& settings, Data const& data)
      : s(settings), on(device_of(s)), trainer(s, data, *on, plenty) {
    trainer.start();
  }
  /// Losses of steps from ... to.
  std::vector<double> steps(std::int64_t from, std::int64_t to) {
    std::vector<double> losses;
    for (std::int64_t t = from; t <= to; ++t) losses.push_back(trainer.step(t).loss);
    return losses;
  }
  std::vector<float> weights() const { return trainer.get(trainer::state_array::weights); }
};

}  // namespace test
