#include "lm_trainer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "adapter_files.hpp"
#include "attention_probe.hpp"
#include "error.hpp"
#include "exponential.hpp"
#include "lm_fit.hpp"
#include "plan_budget.hpp"

namespace trainer {
namespace {

constexpr double sampling_temperature = 0.8;

attention_site site_of(lm_settings const& s) {
  return {attention_of(s), {s.batch, s.context, s.context, s.heads, s.kv_heads, s.head_dim, attention_mask::causal()}};
}

window_order order_of(lm_settings const& s, vocabulary const& words, token_stream const& train) {
  auto const size = std::int64_t(train.tokens.size());
  if (size < s.context + 1)
    throw no_samples("--context " + std::to_string(s.context) + " needs " + std::to_string(s.context + 1) +
                     (words.is_bytes() ? " bytes" : " tokens") + " of training text, there are " +
                     std::to_string(size));
  return {size, s.context, std::uint64_t(s.seed)};
}

}  // namespace

lm_trainer::persistent_ids lm_trainer::record(lm_settings const& s, parameter_layout const& layout,
                                              training_state& state, device const& on, step_memory& memory) {
  ops<float> const& op = on.planner();
  language_model<float> model(s.model(), attention_of(s), layout, s.ckpt);
  std::int64_t const rows = s.batch * s.context, frozen = layout.is_frozen() ? layout.full().count() : 0;
  persistent_ids const ids{.frozen = memory.persistent<float>(frozen, "frozen weights"),
                           .half = memory.persistent<lanewise::bf16>(layout.half().count(), "mirrored weights"),
                           .rotary = memory.persistent<float>(s.context * s.head_dim, "rotary"),
                           .tokens = memory.persistent<std::int32_t>(rows, "tokens"),
                           .targets = memory.persistent<std::int32_t>(rows, "targets"),
                           .loss = memory.persistent<float>(rows, "loss"),
                           .logits = memory.persistent<float>(s.vocabulary_size, "sample logits"),
                           .room = memory.persistent<std::byte>(std::int64_t(on.room()), "library workspace")};
  state.record(op, memory, optimise_graph);
  memory.graph(train_graph);
  model.train(op, memory, {s.batch, s.context, nullptr, nullptr}, {}, nullptr, 0, nullptr, nullptr);
  memory.graph(evaluate_graph);
  model.evaluate(op, memory, {s.batch, s.context, nullptr, nullptr}, {}, nullptr, nullptr);
  memory.graph(sample_graph);
  model.predict(op, memory, {1, s.context, nullptr, nullptr}, 0, {}, nullptr, nullptr);
  memory.graph(probe_graph);
  memory.take<std::byte>(std::int64_t(probe_bytes(op, site_of(s))), "attention probe");
  memory.plan();
  return ids;
}

lanewise::arena_plan lm_trainer::plan_for(lm_settings const& s, device const& on) {
  step_memory memory;
  parameter_layout const layout(s.model(), s.adapted());
  training_state state(s, layout.trained());
  record(s, layout, state, on, memory);
  return memory.planned();
}

lm_trainer::lm_trainer(lm_settings const& s, text_data const& data, device& on, memory_budget budget)
    : settings_(s), base_(s.base.empty() ? std::nullopt : std::optional<base_checkpoint>(s.base)),
      vocabulary_(base_ ? vocabulary(*base_) : vocabulary()), train_(vocabulary_.encode(data.train)),
      validation_(vocabulary_.encode(data.validation)), on_(&on), layout_(s.model(), s.adapted()),
      state_(s, layout_.trained()), model_(s.model(), attention_of(s), layout_, s.ckpt),
      order_(order_of(s, vocabulary_, train_)), refused_(train_.refused + validation_.refused),
      tokens_(std::size_t(s.batch * s.context)), targets_(tokens_.size()), loss_(tokens_.size()),
      logits_(std::size_t(s.vocabulary_size)) {
  if (validation_.bytes == 0) throw no_samples("no validation text is left of what the tokenizer takes");
  ids_ = record(s, layout_, state_, on, memory_);
  bind_plan(memory_, on, budget, [&](std::size_t available) { return cheapest_levers(s, on, available); });
  on.give_room(memory_.at<std::byte>(ids_.room));
  memory_.graph(probe_graph);
  attention_site const site = site_of(s);
  kernels_ = probe_attention(
      on.op(), site, memory_.take<std::byte>(std::int64_t(probe_bytes(on.op(), site)), "attention probe").get());
  std::vector<float> rotary(std::size_t(s.context * s.head_dim));
  fill_rotary_table(s.context, s.head_dim, s.model().rope_theta, rotary.data());
  on.op().upload(s.context * s.head_dim, rotary.data(), memory_.at<float>(ids_.rotary));
  state_.attach(on.op(), memory_);
  if (layout_.is_frozen()) load_base(*base_);
}

/// Every tensor of the base, to where it lies on the device.
void lm_trainer::load_base(base_checkpoint const& base) {
  ops<float> const& op = on_->op();
  auto const note = [&](std::span<float const> values) {
    for (float v : values) base_digest_ = mix(base_digest_ ^ std::bit_cast<std::uint32_t>(v));
  };
  base.load(
      layout_,
      [&](parameter const& p, std::span<float const> values) {
        note(values);
        op.upload(p.count, values.data(), full_weights() + p.offset);
      },
      [&](parameter const& p, std::span<float const> values) {
        note(values);
        std::vector<lanewise::bf16> half(values.size());
        std::ranges::transform(values, half.begin(), lanewise::from_float<lanewise::bf16>);
        op.upload(p.count, half.data(), memory_.at<lanewise::bf16>(ids_.half) + p.offset);
      });
}

float* lm_trainer::full_weights() const {
  return layout_.is_frozen() ? memory_.at<float>(ids_.frozen) : state_.weights();
}

weight_arrays<float> lm_trainer::weights() const {
  return {full_weights(), memory_.at<lanewise::bf16>(ids_.half), layout_.is_frozen() ? state_.weights() : nullptr};
}

double lm_trainer::bytes_per_token() const { return double(validation_.bytes) / double(validation_.tokens.size() - 1); }

void lm_trainer::start() {
  std::int64_t const count = layout_.trained().count();
  auto const seed = std::uint64_t(settings_.seed);
  std::vector<float> weights(std::size_t(layout_.is_frozen() || !base_ ? count : 0));
  if (!settings_.adapter_from.empty()) read_peft_tensors(settings_.adapter_from, layout_, weights);
  else if (layout_.is_frozen()) initialise_adapters(layout_, seed, weights.data());
  else if (base_) load_base(*base_);
  else initialise(layout_, settings_.model(), seed, weights.data());
  if (!weights.empty()) set(state_array::weights, weights);
  state_.zero_moments();
}

token_batch lm_trainer::batch(std::int64_t windows) const {
  return {windows, settings_.context, memory_.at<std::int32_t>(ids_.tokens), memory_.at<std::int32_t>(ids_.targets)};
}

/// The first `windows` windows of tokens_ and targets_.
void lm_trainer::upload_windows(std::int64_t windows) {
  std::int64_t const count = windows * settings_.context;
  on_->op().upload(count, tokens_.data(), memory_.at<std::int32_t>(ids_.tokens));
  on_->op().upload(count, targets_.data(), memory_.at<std::int32_t>(ids_.targets));
}

double lm_trainer::compute_gradients(std::int64_t t) {
  token_batch const in = batch(settings_.batch);
  ops<float> const& op = on_->op();
  state_.zero_gradients();
  double sum = 0;
  std::int64_t const rows = in.rows() * settings_.accumulate;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    std::int64_t const first = position_after(t - 1) + part * in.batch;
    for (std::int64_t i = 0; i < in.batch; ++i)
      copy_window(train_.tokens, order_.begin_of(first + i), in.sequence, tokens_.data() + i * in.sequence,
                  targets_.data() + i * in.sequence);
    upload_windows(in.batch);
    memory_.graph(train_graph);
    model_.train(op, memory_, in, weights(), memory_.at<float>(ids_.rotary), 1.f / float(rows), state_.gradients(),
                 memory_.at<float>(ids_.loss));
    op.download(in.rows(), memory_.at<float>(ids_.loss), loss_.data());
    for (std::int64_t i = 0; i < in.rows(); ++i) sum += double(loss_[std::size_t(i)]);
  }
  return sum / double(rows);
}

double lm_trainer::validate(std::int64_t windows) {
  auto const size = std::int64_t(validation_.tokens.size());
  windows = std::min(windows, workers::piece_count(size - 1, settings_.context));
  token_batch const in = batch(settings_.batch);
  double sum = 0;
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < windows; first += in.batch) {
    for (std::int64_t i = 0; i < in.batch; ++i)  // beyond the last window: past the text, where nothing is a target
      copy_window(validation_.tokens, first + i < windows ? (first + i) * in.sequence : size, in.sequence,
                  tokens_.data() + i * in.sequence, targets_.data() + i * in.sequence);
    upload_windows(in.batch);
    memory_.graph(evaluate_graph);
    model_.evaluate(on_->op(), memory_, in, weights(), memory_.at<float>(ids_.rotary), memory_.at<float>(ids_.loss));
    on_->op().download(in.rows(), memory_.at<float>(ids_.loss), loss_.data());
    for (std::size_t i = 0; i < loss_.size(); ++i) {
      sum += double(loss_[i]);
      count += targets_[i] != no_target;
    }
  }
  return sum / double(count);
}

std::string lm_trainer::sample(std::string const& prompt, std::int64_t bytes) {
  std::vector<std::int32_t> words = vocabulary_.encode_prompt(prompt);
  std::string text;
  random_numbers draw(std::uint64_t(settings_.seed), stream::sampling);
  for (std::int64_t i = 0; i < bytes && std::int64_t(text.size()) < bytes; ++i) {
    auto const used = std::min<std::int64_t>(std::int64_t(words.size()), settings_.context);
    for (std::int64_t j = 0; j < settings_.context; ++j)  // what follows the text changes nothing: attention is causal
      tokens_[std::size_t(j)] = j < used ? words[words.size() - std::size_t(used - j)] : 0;
    upload_windows(1);
    memory_.graph(sample_graph);
    model_.predict(on_->op(), memory_, batch(1), used - 1, weights(), memory_.at<float>(ids_.rotary),
                   memory_.at<float>(ids_.logits));
    on_->op().download(settings_.vocabulary_size, memory_.at<float>(ids_.logits), logits_.data());
    float const most = *std::ranges::max_element(logits_);
    for (float& l : logits_) l = (l - most) / float(sampling_temperature);
    exponentials(settings_.vocabulary_size, logits_.data(), logits_.data());
    double sum = 0, reached = 0;
    for (float e : logits_) sum += double(e);
    double const wanted = draw.uniform() * sum;
    std::size_t chosen = 0;
    for (; chosen + 1 < logits_.size() && (reached += double(logits_[chosen])) < wanted; ++chosen) {
    }
    words.push_back(std::int32_t(chosen));
    text += vocabulary_.decode(std::int32_t(chosen));
  }
  return text;
}

}  // namespace trainer
