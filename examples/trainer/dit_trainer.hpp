// One training run of the diffusion transformer without its surroundings: recordings in memory, the plan, the step,
// validation and sampling. Files, progress and signals are dit_command's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device.hpp"
#include "dit_model.hpp"
#include "dit_options.hpp"
#include "flow.hpp"
#include "trainee.hpp"

namespace trainer {

/// Mean squared errors of the velocity over the same data, noise and times.
struct flow_validation {
  double loss, linear;  ///< the model's, and the best per-channel linear predictor's
};

class dit_trainer final : public trainee {
 public:
  /// Plans everything and allocates it, once. Throws attn-unsupported, and out-of-memory with est, free, reserve and
  /// the settings that would fit. `data` and `on` outlive this.
  dit_trainer(dit_settings const& settings, recordings const& data, device& on, memory_budget budget);

  /// The plan of a run with these settings, which the run allocates to the byte. Throws attn-unsupported.
  static lanewise::arena_plan plan_for(dit_settings const& settings, recordings const& data, device const& on);
  static std::size_t estimate(dit_settings const& settings, recordings const& data, device const& on) {
    return plan_for(settings, data, on).peak();
  }

  /// Draws what is trained, or reads it from --adapter-from; the optimiser's averages are 0.
  void start();

  char const* command() const override { return "dit"; }
  training_state const& state() const override { return state_; }
  /// Of the mean over the step's latents.
  double compute_gradients(std::int64_t t) override;
  double glance() override { return validate(glance_draws).loss; }
  double held_out() override { return validate().loss; }
  std::string glance_is() const override { return "with " + std::to_string(glance_draws) + " draws of noise"; }
  std::int64_t position_after(std::int64_t t) const override { return t * settings_.crops_per_step(); }
  std::int64_t tokens_per_step() const override { return settings_.crops_per_step() * settings_.tokens(); }
  /// How latents become coefficients of the lapped transform.
  std::vector<std::pair<std::string, std::vector<float>>> constants() const override {
    return {{"latents.mean", data_->mean}, {"latents.deviation", data_->deviation}};
  }

  /// Over the held-out stretches, each cut into crops of at most --crop-max frames, each seen with `draws` draws of
  /// noise and time that depend on the seed alone.
  flow_validation validate(std::int64_t draws = 16);

  /// Latents [--crop-max, bands] from noise, along the model's velocity in `steps` equal steps of Euler's method.
  std::vector<float> sample(std::string const& caption, std::int64_t steps);

  dit_layout const& layout() const { return layout_; }
  linear_predictor const& yardstick() const { return linear_; }
  std::string const& attention_kernels() const { return kernels_; }
  lanewise::arena_plan const& plan() const { return memory_.planned(); }

 private:
  static constexpr std::int64_t glance_draws = 4;
  enum graph : std::size_t { optimise_graph, train_graph, validate_graph, sample_graph, probe_graph };
  struct persistent_ids {
    lanewise::tensor_id frozen, half, rotary, noised, target, time, time_gap, row_weight, channel_weight, loss,
        key_lengths, caption, caption_lengths, room;
  };
  /// A crop with its noise, as a function of the seed and a position.
  struct noised_crop {
    stretch at;
    double t;
    std::string caption;
    bool has_caption;
  };
  static persistent_ids record(dit_settings const& s, dit_layout const& layout, std::int64_t caption_length,
                               training_state& state, device const& on, step_memory& memory);
  static dit_batch<float> empty_batch(dit_settings const& s, std::int64_t batch, std::int64_t caption_length);
  weight_arrays<float> weights() const;
  void draw_base();
  noised_crop crop_at(std::int64_t position) const;
  void put(std::int64_t row, noised_crop const& c, random_numbers noise, float weight);
  void put_nothing(std::int64_t row);
  void put_time(std::int64_t row, double t);
  void put_caption(std::int64_t row, std::string const* text);
  void upload(std::int64_t batch);
  double download_loss(std::int64_t batch);
  dit_batch<float> input(std::int64_t batch) const;
  void move_targets(std::int64_t row, std::int64_t tokens, random_numbers& draw);

  dit_settings settings_;
  recordings const* data_;
  device* on_;
  std::int64_t caption_length_;  ///< of every batch: the longest caption's
  dit_layout layout_;
  training_state state_;
  dit_model<float> model_;
  linear_predictor linear_;
  step_memory memory_;
  persistent_ids ids_;
  std::string kernels_;
  /// A batch on the host, as it is uploaded.
  struct {
    std::vector<float> noised, target, time, time_gap, row_weight, loss;
    std::vector<std::int32_t> key_lengths, caption, caption_lengths;
  } host_;
};

}  // namespace trainer
