#include "training_state.hpp"

#include <cmath>

#include "error.hpp"

namespace trainer {

training_state::training_state(run_settings const& s, parameter_list const& trained)
    : settings_(s), trained_(&trained),
      optimiser_(
          adamw_of(s), trained, s.optimizer == "muon" ? muon::takes : [](parameter const&) { return false; }) {}

void training_state::record(ops<float> const& planner, step_memory& memory, std::size_t graph) {
  std::int64_t const count = trained_->count(), segments = optimiser_.rest().segment_count();
  weights_ = memory.persistent<float>(count, "weights");
  gradients_ = memory.persistent<float>(count, "gradients");
  m_ = memory.persistent<float>(count, "first moments");
  v_ = memory.persistent<float>(count, "second moments");
  squares_ = memory.persistent<double>(segments, "squares");
  segments_ = memory.persistent<segment>(segments, "segments");
  norm_ = memory.persistent<double>(1, "norm");
  graph_ = graph;
  memory.graph(graph);
  optimiser_.update(planner, memory, 1, 0, {}, nullptr);
}

void training_state::attach(ops<float> const& op, step_memory& memory) {
  op_ = &op;
  memory_ = &memory;
  op.upload(optimiser_.rest().segment_count(), optimiser_.rest().segments().data(), memory.at<segment>(segments_));
}

float* training_state::place_of(state_array which) const {
  switch (which) {
    case state_array::weights: return memory_->at<float>(weights_);
    case state_array::gradients: return memory_->at<float>(gradients_);
    case state_array::first_moments: return memory_->at<float>(m_);
    case state_array::second_moments: return memory_->at<float>(v_);
  }
  return nullptr;
}

void training_state::zero_moments() const {
  for (state_array const which : {state_array::first_moments, state_array::second_moments})
    op_->zero(trained_->count(), place_of(which));
}

std::vector<float> training_state::get(state_array which) const {
  std::vector<float> values(std::size_t(trained_->count()));
  op_->download(trained_->count(), static_cast<float const*>(place_of(which)), values.data());
  return values;
}

void training_state::set(state_array which, std::span<float const> values) const {
  op_->upload(trained_->count(), values.data(), place_of(which));
}

step_result training_state::update(std::int64_t t, double loss) const {
  adamw_arrays const arrays{.segments = memory_->at<segment>(segments_),
                            .gradients = gradients(),
                            .weights = weights(),
                            .m = place_of(state_array::first_moments),
                            .v = place_of(state_array::second_moments),
                            .squares = memory_->at<double>(squares_),
                            .norm = memory_->at<double>(norm_)};
  double const rate = learning_rate_at(t, settings_.warmup, settings_.steps, settings_.learning_rate);
  memory_->graph(graph_);
  step_result const r{loss, rate, optimiser_.update(*op_, *memory_, t, rate, arrays, gradients())};
  if (!std::isfinite(r.loss) || !std::isfinite(r.gradient_norm))
    throw loss_not_finite("step " + std::to_string(t) + ": loss " + std::to_string(r.loss) + ", gradient norm " +
                          std::to_string(r.gradient_norm) +
                          "; a smaller --lr or --clip may help; the last checkpoint is untouched");
  return r;
}

}  // namespace trainer
