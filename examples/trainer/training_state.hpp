// What a run changes: trained tensors, their gradients and the optimiser's averages, all flat arrays in the run's plan,
// and the update that ends a step. Muon moves matrices where the settings say so, AdamW the rest.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muon.hpp"
#include "run_options.hpp"
#include "step_memory.hpp"

namespace trainer {

/// Flat arrays laid out as training_state::trained() says. A checkpoint holds all but the gradients.
enum class state_array { weights, gradients, first_moments, second_moments };

struct step_result {
  double loss, learning_rate, gradient_norm;  ///< loss: mean over the step's data; norm: before clipping
};

class training_state {
 public:
  /// trained outlives this.
  training_state(run_settings const& settings, parameter_list const& trained);

  /// While the plan is recorded: the arrays, and as graph `graph` the update.
  void record(ops<float> const& planner, step_memory& memory, std::size_t graph);
  /// Once the plan is bound. `op` and `memory` outlive this.
  void attach(ops<float> const& op, step_memory& memory);

  parameter_list const& trained() const { return *trained_; }
  float* weights() const { return place_of(state_array::weights); }
  float* gradients() const { return place_of(state_array::gradients); }
  void zero_gradients() const { op_->zero(trained_->count(), gradients()); }
  void zero_moments() const;

  /// A copy of the array, trained().count() elements, and the reverse.
  std::vector<float> get(state_array which) const;
  void set(state_array which, std::span<float const> values) const;

  /// Ends step t, counted from 1, of mean loss `loss`: moves the weights by gradients(), which it may spoil. Throws
  /// loss-not-finite.
  step_result update(std::int64_t t, double loss) const;

 private:
  float* place_of(state_array which) const;
  run_settings settings_;
  parameter_list const* trained_;
  muon optimiser_;
  lanewise::tensor_id weights_, gradients_, m_, v_, squares_, segments_, norm_;
  std::size_t graph_ = 0;
  ops<float> const* op_ = nullptr;
  step_memory* memory_ = nullptr;
};

}  // namespace trainer
