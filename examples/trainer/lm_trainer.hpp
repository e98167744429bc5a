// One training run of the language model without its surroundings: data in memory, the plan, the step, validation and
// sampling. Files, progress and signals are lm_command's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device.hpp"
#include "model.hpp"
#include "options.hpp"
#include "text_data.hpp"
#include "trainee.hpp"
#include "vocabulary.hpp"
#include "windows.hpp"

namespace trainer {

class lm_trainer final : public trainee {
 public:
  /// Plans everything and allocates it, once, and reads a frozen base. Throws no-samples when a window does not fit the
  /// text, attn-unsupported, bad-base, and out-of-memory with est, free, reserve and the settings that would fit.
  /// `on` outlives this.
  lm_trainer(lm_settings const& settings, text_data const& data, device& on, memory_budget budget);

  /// The plan of a run with these settings, which the run allocates to the byte. Throws attn-unsupported.
  static lanewise::arena_plan plan_for(lm_settings const& settings, device const& on);
  static std::size_t estimate(lm_settings const& settings, device const& on) { return plan_for(settings, on).peak(); }

  /// Draws what is trained, or reads it from --base or --adapter-from; the optimiser's averages are 0.
  void start();

  char const* command() const override { return "lm"; }
  training_state const& state() const override { return state_; }
  /// Of the mean over the step's tokens, in nats.
  double compute_gradients(std::int64_t t) override;
  double glance() override { return validate(validation_glance); }
  double held_out() override { return validate(); }
  std::string glance_is() const override { return "on the first " + std::to_string(validation_glance) + " windows"; }
  std::int64_t position_after(std::int64_t t) const override { return t * settings_.windows_per_step(); }
  std::int64_t tokens_per_step() const override { return settings_.windows_per_step() * settings_.context; }

  /// Mean loss in nats per token over the first `windows` windows of the validation text; all of them by default.
  double validate(std::int64_t windows = std::int64_t(1) << 40);

  /// `bytes` bytes that the model continues `prompt` with, at temperature 0.8.
  std::string sample(std::string const& prompt, std::int64_t bytes);

  vocabulary const& words() const { return vocabulary_; }
  /// Positions that the model is made for: the base's, or those that it is trained with.
  std::int64_t positions() const { return base_ ? base_->positions() : settings_.context; }
  /// Bytes of validation text that a token stands for, on average; 1 for a model of bytes.
  double bytes_per_token() const;
  /// Documents of both texts that the tokenizer refused, and which are left out.
  std::int64_t refused_documents() const { return refused_; }
  std::uint64_t base_digest() const override { return base_digest_; }

  parameter_layout const& layout() const { return layout_; }
  std::int64_t windows_per_epoch() const { return order_.windows_per_epoch(); }
  std::string const& attention_kernels() const { return kernels_; }
  lanewise::arena_plan const& plan() const { return memory_.planned(); }
  step_memory& memory() { return memory_; }

 private:
  /// Windows of a look at the validation text during training; the end looks at all of it.
  static constexpr std::int64_t validation_glance = 64;
  enum graph : std::size_t { optimise_graph, train_graph, evaluate_graph, sample_graph, probe_graph };
  struct persistent_ids {
    lanewise::tensor_id frozen, half, rotary, tokens, targets, loss, logits, room;
  };
  static persistent_ids record(lm_settings const& s, parameter_layout const& layout, training_state& state,
                               device const& on, step_memory& memory);
  token_batch batch(std::int64_t windows) const;
  void upload_windows(std::int64_t windows);
  float* full_weights() const;
  weight_arrays<float> weights() const;
  void load_base(base_checkpoint const& base);

  lm_settings settings_;
  std::optional<base_checkpoint> base_;
  vocabulary vocabulary_;
  token_stream train_, validation_;
  device* on_;
  parameter_layout layout_;
  training_state state_;
  language_model<float> model_;
  window_order order_;
  step_memory memory_;
  persistent_ids ids_;
  std::string kernels_;
  std::uint64_t base_digest_ = 0;
  std::int64_t refused_ = 0;
  std::vector<std::int32_t> tokens_, targets_;  ///< on the host, as they are uploaded
  std::vector<float> loss_, logits_;            ///< on the host, as they are downloaded
};

}  // namespace trainer
