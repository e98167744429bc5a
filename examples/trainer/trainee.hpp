// A model in training as the run loop and the checkpoints see it: something that takes steps, can be validated, and has
// a state that is all that a later step depends on.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "training_state.hpp"

namespace trainer {

class trainee {
 public:
  virtual ~trainee() = default;
  /// The command that trains it, as in "lanewise-train lm"; a checkpoint is of one command.
  virtual char const* command() const = 0;
  virtual training_state const& state() const = 0;
  std::vector<float> get(state_array which) const { return state().get(which); }
  void set(state_array which, std::span<float const> values) { state().set(which, values); }

  /// The two halves of step t, counted from 1. The first leaves the gradient of the step's mean loss, which it returns,
  /// as a state array; the second, given that loss, updates the weights and may spoil the gradient. Throws
  /// loss-not-finite.
  virtual double compute_gradients(std::int64_t t) = 0;
  step_result update(std::int64_t t, double loss) { return state().update(t, loss); }
  step_result step(std::int64_t t) { return update(t, compute_gradients(t)); }

  /// Validation loss while the run goes on, and what it is measured on.
  virtual double glance() = 0;
  virtual std::string glance_is() const = 0;
  /// Validation loss over all of the held-out data.
  virtual double held_out() = 0;

  /// Of the numbers of a frozen base that was read; 0 where there is none.
  virtual std::uint64_t base_digest() const { return 0; }

  /// Windows or crops that steps 1 ... t have used; with the seed it is the whole state of the order.
  virtual std::int64_t position_after(std::int64_t t) const = 0;
  virtual std::int64_t tokens_per_step() const = 0;

  /// What else a checkpoint and the final weights hold: vectors that are functions of the data, by name.
  virtual std::vector<std::pair<std::string, std::vector<float>>> constants() const { return {}; }
};

}  // namespace trainer
