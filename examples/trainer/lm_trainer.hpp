// One training run of the language model without its surroundings: data in memory, the plan, the step, validation and
// sampling. Files, progress and signals are lm_command's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "adamw.hpp"
#include "model.hpp"
#include "options.hpp"
#include "text_data.hpp"
#include "windows.hpp"

namespace trainer {

struct step_result {
  double loss, learning_rate, gradient_norm;  ///< loss: mean over the batch, in nats per byte
};

/// What memory there is for the plan, in bytes.
struct memory_budget {
  std::size_t free, reserve;  ///< the plan may take free - reserve
};

/// The --memory-mb of the settings, or what /proc/meminfo says is available, of which 256 MiB are left alone.
memory_budget budget_of(lm_settings const& settings);

class lm_trainer {
 public:
  /// Plans everything and allocates it, once. Throws no-samples when a window does not fit the text, attn-unsupported,
  /// and out-of-memory with est, free, reserve and the settings that would fit.
  lm_trainer(lm_settings const& settings, text_data const& data, lanewise::thread_pool& pool, memory_budget budget);

  /// Bytes that a run with these settings needs, without allocating them.
  static std::size_t estimate(lm_settings const& settings, int threads);

  /// Draws the weights; the optimiser's averages are 0.
  void start();

  /// Step t, counted from 1. Throws loss-not-finite.
  step_result step(std::int64_t t);

  /// Mean loss in nats per byte over the first `windows` windows of the validation text; all of them by default.
  double validate(std::int64_t windows = std::int64_t(1) << 40);

  /// `bytes` bytes that the model continues `prompt` with, at temperature 0.8.
  std::string sample(std::string const& prompt, std::int64_t bytes);

  parameter_layout const& layout() const { return layout_; }
  std::span<float> weights() { return {memory_.at<float>(ids_.weights), std::size_t(layout_.count())}; }
  std::span<float> first_moments() { return {memory_.at<float>(ids_.m), std::size_t(layout_.count())}; }
  std::span<float> second_moments() { return {memory_.at<float>(ids_.v), std::size_t(layout_.count())}; }
  std::int64_t windows_per_epoch() const { return order_.windows_per_epoch(); }
  /// Windows that steps 1 ... t have used; with the seed it is the whole state of the order.
  std::int64_t position_after(std::int64_t t) const { return t * settings_.batch; }
  std::string const& attention_kernels() const { return kernels_; }
  lanewise::arena_plan const& plan() const { return memory_.planned(); }
  step_memory& memory() { return memory_; }

 private:
  enum graph : std::size_t { train_graph, evaluate_graph, sample_graph, probe_graph };
  struct persistent_ids {
    lanewise::tensor_id weights, gradients, m, v, squares, rotary, tokens, targets, loss, logits;
  };
  static persistent_ids record(lm_settings const& s, parameter_layout const& layout, adamw const& optimiser,
                               int threads, step_memory& memory);
  token_batch batch(std::int64_t windows) const;

  lm_settings settings_;
  text_data const* data_;
  workers on_;
  parameter_layout layout_;
  adamw optimiser_;
  language_model<float> model_;
  window_order order_;
  step_memory memory_;
  persistent_ids ids_;
  std::string kernels_;
};

}  // namespace trainer
