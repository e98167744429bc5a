#include "dit_trainer.hpp"

#include <algorithm>

#include "adapter_files.hpp"
#include "attention_probe.hpp"
#include "dit_fit.hpp"
#include "error.hpp"
#include "plan_budget.hpp"
#include "workers.hpp"

namespace trainer {
namespace {

/// The caption that stands for none.
constexpr std::int32_t no_caption = caption_entries - 1;

std::int64_t longest_caption(dit_settings const& s, recordings const& data) {
  std::size_t longest = std::max<std::size_t>(1, s.prompt.size());
  for (recording const& r : data.all) longest = std::max(longest, r.caption.size());
  return std::int64_t(longest);
}

/// The site that the probe tries; the others differ by their masks and keys.
attention_site site_of(dit_settings const& s) {
  std::int64_t const length = s.tokens() + s.model().prefix();
  return {attention_of(s), {s.batch, length, length, s.heads, s.kv_heads, s.head_dim, attention_mask::none()}};
}

}  // namespace

dit_batch<float> dit_trainer::empty_batch(dit_settings const& s, std::int64_t batch, std::int64_t caption_length) {
  return {.batch = batch,
          .tokens = s.tokens(),
          .caption_length = caption_length,
          .noised = nullptr,
          .context = nullptr,
          .time = nullptr,
          .time_gap = nullptr,
          .key_lengths = nullptr,
          .caption = nullptr,
          .caption_lengths = nullptr};
}

dit_trainer::persistent_ids dit_trainer::record(dit_settings const& s, dit_layout const& layout,
                                                std::int64_t caption_length, training_state& state, device const& on,
                                                step_memory& memory) {
  ops<float> const& op = on.planner();
  dit_ops<float> const& dit = on.dit_planner();
  dit_shape const shape = s.model();
  dit_model<float> model(shape, attention_of(s), layout, s.ckpt);
  std::int64_t const rows = s.batch * s.tokens(), width = shape.patch_width();
  std::int64_t const frozen = layout.is_frozen() ? layout.full().count() : 0;
  persistent_ids const ids{.frozen = memory.persistent<float>(frozen, "frozen weights"),
                           .half = memory.persistent<lanewise::bf16>(layout.half().count(), "mirrored weights"),
                           .rotary = memory.persistent<float>((s.tokens() + shape.prefix()) * shape.rotated, "rotary"),
                           .noised = memory.persistent<float>(rows * width, "noised"),
                           .target = memory.persistent<float>(rows * width, "target"),
                           .time = memory.persistent<float>(s.batch * time_features, "time"),
                           .time_gap = memory.persistent<float>(s.batch * time_features, "time gap"),
                           .row_weight = memory.persistent<float>(rows, "row weights"),
                           .channel_weight = memory.persistent<float>(width, "channel weights"),
                           .loss = memory.persistent<float>(rows, "loss"),
                           .key_lengths = memory.persistent<std::int32_t>(s.batch, "key lengths"),
                           .caption = memory.persistent<std::int32_t>(s.batch * caption_length, "captions"),
                           .caption_lengths = memory.persistent<std::int32_t>(s.batch, "caption lengths"),
                           .room = memory.persistent<std::byte>(std::int64_t(on.room()), "library workspace")};
  state.record(op, memory, optimise_graph);
  memory.graph(train_graph);
  model.train(op, dit, memory, empty_batch(s, s.batch, caption_length), {}, nullptr, nullptr, nullptr, nullptr, nullptr,
              nullptr);
  memory.graph(validate_graph);
  {
    buffer<float> const prediction = memory.take<float>(rows * width, "prediction");
    model.predict(op, dit, memory, empty_batch(s, s.batch, caption_length), {}, nullptr, prediction);
  }
  memory.graph(sample_graph);
  {
    buffer<float> const velocity = memory.take<float>(s.tokens() * width, "velocity");
    model.predict(op, dit, memory, empty_batch(s, 1, caption_length), {}, nullptr, velocity);
  }
  memory.graph(probe_graph);
  memory.take<std::byte>(std::int64_t(probe_bytes(op, site_of(s))), "attention probe");
  memory.plan();
  return ids;
}

lanewise::arena_plan dit_trainer::plan_for(dit_settings const& s, recordings const& data, device const& on) {
  step_memory memory;
  dit_layout const layout(s.model(), s.adapted());
  training_state state(s, layout.trained());
  record(s, layout, longest_caption(s, data), state, on, memory);
  return memory.planned();
}

dit_trainer::dit_trainer(dit_settings const& s, recordings const& data, device& on, memory_budget budget)
    : settings_(s), data_(&data), on_(&on), caption_length_(longest_caption(s, data)), layout_(s.model(), s.adapted()),
      state_(s, layout_.trained()), model_(s.model(), attention_of(s), layout_, s.ckpt), linear_(data) {
  ids_ = record(s, layout_, caption_length_, state_, on, memory_);
  bind_plan(memory_, on, budget, [&](std::size_t available) { return cheapest_levers(s, data, on, available); });
  ops<float> const& op = on.op();
  on.give_room(memory_.at<std::byte>(ids_.room));
  memory_.graph(probe_graph);
  attention_site const site = site_of(s);
  kernels_ =
      probe_attention(op, site, memory_.take<std::byte>(std::int64_t(probe_bytes(op, site)), "attention probe").get());
  dit_shape const shape = s.model();
  std::int64_t const positions = s.tokens() + shape.prefix(), rows = s.batch * s.tokens();
  std::vector<float> rotary(std::size_t(positions * shape.rotated));
  fill_rotary_table(positions, shape.rotated, shape.rope_theta, rotary.data());
  op.upload(std::int64_t(rotary.size()), rotary.data(), memory_.at<float>(ids_.rotary));
  std::vector<float> const ones(std::size_t(shape.patch_width()), 1.f);
  op.upload(shape.patch_width(), ones.data(), memory_.at<float>(ids_.channel_weight));
  state_.attach(op, memory_);
  if (layout_.is_frozen()) draw_base();
  auto const size = [](auto& vector, std::int64_t count) { vector.resize(std::size_t(count)); };
  size(host_.noised, rows * shape.patch_width());
  size(host_.target, rows * shape.patch_width());
  size(host_.time, s.batch * time_features);
  size(host_.time_gap, s.batch * time_features);
  size(host_.row_weight, rows);
  size(host_.loss, rows);
  size(host_.key_lengths, s.batch);
  size(host_.caption, s.batch * caption_length_);
  size(host_.caption_lengths, s.batch);
}

/// The frozen weights, as a run without adapters begins with them; the same tensor has the same numbers in either
/// store.
void dit_trainer::draw_base() {
  ops<float> const& op = on_->op();
  dit_layout const plain(settings_.model());
  auto next_full = layout_.full().all().begin(), next_half = layout_.half().all().begin();
  constexpr std::int64_t grain = 1 << 16;
  lanewise::thread_pool pool(int(settings_.threads));
  std::vector<float> values;
  std::vector<lanewise::bf16> half;
  std::uint64_t index = 0;
  for (parameter const& p : plain.full().all()) {
    bool const is_half = next_full == layout_.full().all().end() || next_full->name != p.name;
    values.resize(std::size_t(p.count));
    half.resize(is_half ? values.size() : 0);
    workers(pool).pieces(p.count, grain, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
      draw_weight(p, index, settings_.model(), std::uint64_t(settings_.seed), begin, end, values.data());
      for (std::int64_t i = begin; is_half && i < end; ++i)
        half[std::size_t(i)] = lanewise::from_float<lanewise::bf16>(values[std::size_t(i)]);
    });
    ++index;
    if (is_half) op.upload(p.count, half.data(), memory_.at<lanewise::bf16>(ids_.half) + next_half++->offset);
    else op.upload(p.count, values.data(), memory_.at<float>(ids_.frozen) + next_full++->offset);
  }
}

weight_arrays<float> dit_trainer::weights() const {
  if (!layout_.is_frozen()) return {.full = state_.weights()};
  return {memory_.at<float>(ids_.frozen), memory_.at<lanewise::bf16>(ids_.half), state_.weights()};
}

void dit_trainer::start() {
  auto const seed = std::uint64_t(settings_.seed);
  std::vector<float> weights(std::size_t(layout_.trained().count()));
  if (!settings_.adapter_from.empty()) read_peft_tensors(settings_.adapter_from, layout_, weights);
  else if (layout_.is_frozen()) initialise_adapters(layout_, seed, weights.data());
  else initialise(layout_, settings_.model(), seed, weights.data());
  set(state_array::weights, weights);
  state_.zero_moments();
}

/// A stretch drawn by its length, a length between the bounds that fits it, a start, a time.
dit_trainer::noised_crop dit_trainer::crop_at(std::int64_t position) const {
  random_numbers draw(std::uint64_t(settings_.seed), stream::windows, std::uint64_t(position));
  auto const below = [&](std::int64_t n) { return std::int64_t(draw.below(std::uint64_t(n))); };
  std::int64_t at = below(data_->frames_of(data_->train));
  std::size_t chosen = 0;
  while (at >= data_->train[chosen].frames) at -= data_->train[chosen++].frames;
  stretch const whole = data_->train[chosen];
  std::int64_t const patch = settings_.patch, there = whole.frames / patch;
  std::int64_t const most = std::min(there, settings_.tokens());
  std::int64_t const fewest = std::min(there, (settings_.crop_min + patch - 1) / patch);
  std::int64_t const tokens = fewest + below(most - fewest + 1), begin = below(there - tokens + 1);
  double const t = draw_time(draw, settings_.times());
  return {{whole.recording, whole.begin + begin * patch, tokens * patch},
          t,
          data_->all[whole.recording].caption,
          draw.uniform() >= settings_.caption_dropout};
}

void dit_trainer::put_time(std::int64_t row, double t) {
  fill_time_features(t, host_.time.data() + row * time_features);
  fill_time_features(0, host_.time_gap.data() + row * time_features);  // t - r, and r = t in training
}

/// Null: none.
void dit_trainer::put_caption(std::int64_t row, std::string const* text) {
  std::int32_t* const to = host_.caption.data() + row * caption_length_;
  std::fill_n(to, caption_length_, no_caption);
  if (text) std::ranges::transform(*text, to, [](char c) { return std::int32_t(std::uint8_t(c)); });
  host_.caption_lengths[std::size_t(row)] = text ? std::max(1, std::int32_t(text->size())) : 1;
}

/// A batch element; its tokens past the crop are no keys, and have loss and gradient 0.
void dit_trainer::put(std::int64_t row, noised_crop const& c, random_numbers noise, float weight) {
  std::int64_t const tokens = settings_.tokens(), width = settings_.model().patch_width();
  std::int64_t const used = c.at.frames / settings_.patch, count = used * width;
  float *const noised = host_.noised.data() + row * tokens * width, *const target =
                                                                        host_.target.data() + row * tokens * width;
  std::vector<float> drawn(static_cast<std::size_t>(count));
  for (float& x : drawn) x = float(noise.normal());
  noise_data(count, c.t, data_->frame(c.at, 0), drawn.data(), noised, target);
  std::fill(noised + count, noised + tokens * width, 0.f);
  std::fill(target + count, target + tokens * width, 0.f);
  float* const weights = host_.row_weight.data() + row * tokens;
  std::fill_n(weights, used, weight);
  std::fill_n(weights + used, tokens - used, 0.f);
  host_.key_lengths[std::size_t(row)] = std::int32_t(used + settings_.model().prefix());
  put_time(row, c.t);
  put_caption(row, c.has_caption ? &c.caption : nullptr);
}

/// A batch element that counts for nothing.
void dit_trainer::put_nothing(std::int64_t row) {
  put(row, {{0, 0, 0}, 1, {}, false}, {0, stream::noise}, 0);
  host_.key_lengths[std::size_t(row)] = std::int32_t(1);
}

/// The first `tokens` targets of a batch element in random order.
void dit_trainer::move_targets(std::int64_t row, std::int64_t tokens, random_numbers& draw) {
  std::int64_t const width = settings_.model().patch_width();
  float* const target = host_.target.data() + row * settings_.tokens() * width;
  for (std::int64_t i = tokens - 1; i > 0; --i)
    std::swap_ranges(target + i * width, target + (i + 1) * width,
                     target + std::int64_t(draw.below(std::uint64_t(i + 1))) * width);
}

void dit_trainer::upload(std::int64_t batch) {
  ops<float> const& op = on_->op();
  std::int64_t const rows = batch * settings_.tokens(), width = settings_.model().patch_width();
  op.upload(rows * width, host_.noised.data(), memory_.at<float>(ids_.noised));
  op.upload(rows * width, host_.target.data(), memory_.at<float>(ids_.target));
  op.upload(batch * time_features, host_.time.data(), memory_.at<float>(ids_.time));
  op.upload(batch * time_features, host_.time_gap.data(), memory_.at<float>(ids_.time_gap));
  op.upload(rows, host_.row_weight.data(), memory_.at<float>(ids_.row_weight));
  op.upload(batch, host_.key_lengths.data(), memory_.at<std::int32_t>(ids_.key_lengths));
  op.upload(batch * caption_length_, host_.caption.data(), memory_.at<std::int32_t>(ids_.caption));
  op.upload(batch, host_.caption_lengths.data(), memory_.at<std::int32_t>(ids_.caption_lengths));
}

dit_batch<float> dit_trainer::input(std::int64_t batch) const {
  dit_batch<float> in = empty_batch(settings_, batch, caption_length_);
  in.noised = memory_.at<float>(ids_.noised);
  in.time = memory_.at<float>(ids_.time);
  in.time_gap = memory_.at<float>(ids_.time_gap);
  in.key_lengths = memory_.at<std::int32_t>(ids_.key_lengths);
  in.caption = memory_.at<std::int32_t>(ids_.caption);
  in.caption_lengths = memory_.at<std::int32_t>(ids_.caption_lengths);
  return in;
}

/// The sum over the batch's tokens.
double dit_trainer::download_loss(std::int64_t batch) {
  std::int64_t const rows = batch * settings_.tokens();
  on_->op().download(rows, static_cast<float const*>(memory_.at<float>(ids_.loss)), host_.loss.data());
  double sum = 0;
  for (std::int64_t i = 0; i < rows; ++i) sum += double(host_.loss[std::size_t(i)]);
  return sum;
}

double dit_trainer::compute_gradients(std::int64_t t) {
  auto const seed = std::uint64_t(settings_.seed);
  std::vector<noised_crop> crops;
  std::int64_t tokens = 0;
  for (std::int64_t position = position_after(t - 1); position < position_after(t); ++position) {
    crops.push_back(crop_at(position));
    tokens += crops.back().at.frames / settings_.patch;
  }
  state_.zero_gradients();
  double sum = 0;
  for (std::int64_t part = 0; part < settings_.accumulate; ++part) {
    for (std::int64_t i = 0; i < settings_.batch; ++i) {
      std::int64_t const index = part * settings_.batch + i;
      random_numbers noise(seed, stream::noise, std::uint64_t(position_after(t - 1) + index));
      noised_crop const& c = crops[std::size_t(index)];
      put(i, c, noise, 1.f / float(tokens));
      if (settings_.ablate == "targets") move_targets(i, c.at.frames / settings_.patch, noise);
    }
    upload(settings_.batch);
    memory_.graph(train_graph);
    model_.train(on_->op(), on_->dit(), memory_, input(settings_.batch), weights(), memory_.at<float>(ids_.rotary),
                 memory_.at<float>(ids_.target), memory_.at<float>(ids_.row_weight),
                 memory_.at<float>(ids_.channel_weight), state_.gradients(), memory_.at<float>(ids_.loss));
    sum += download_loss(settings_.batch);
  }
  return sum / double(tokens);
}

flow_validation dit_trainer::validate(std::int64_t draws) {
  std::int64_t const patch = settings_.patch, width = settings_.model().patch_width();
  std::vector<stretch> crops;
  for (stretch const& s : data_->validation)
    for (std::int64_t begin = 0; begin < s.frames; begin += settings_.crop_max)
      crops.push_back({s.recording, s.begin + begin, std::min(settings_.crop_max, s.frames - begin)});
  auto const items = std::int64_t(crops.size()) * draws;
  double model = 0, linear = 0, tokens = 0;
  for (std::int64_t first = 0; first < items; first += settings_.batch) {
    for (std::int64_t i = 0; i < settings_.batch; ++i) {
      if (first + i >= items) {
        put_nothing(i);
        continue;
      }
      stretch const& s = crops[std::size_t((first + i) / draws)];
      random_numbers draw(std::uint64_t(settings_.seed), stream::validation, std::uint64_t(first + i));
      double const t = draw_time(draw, settings_.times());
      put(i, {s, t, data_->all[s.recording].caption, true}, draw, 1.f);
      std::int64_t const at = i * settings_.tokens() * width;
      linear += linear_.squared_error(t, s.frames, host_.noised.data() + at, host_.target.data() + at) / double(width);
      tokens += double(s.frames / patch);
    }
    upload(settings_.batch);
    memory_.graph(validate_graph);
    std::int64_t const rows = settings_.batch * settings_.tokens();
    buffer<float> const prediction = memory_.take<float>(rows * width, "prediction");
    model_.predict(on_->op(), on_->dit(), memory_, input(settings_.batch), weights(), memory_.at<float>(ids_.rotary),
                   prediction);
    on_->dit().squared_error(rows, width, memory_.at<float>(ids_.target), memory_.at<float>(ids_.row_weight),
                             memory_.at<float>(ids_.channel_weight), prediction, memory_.at<float>(ids_.loss));
    model += download_loss(settings_.batch);
  }
  return {model / tokens, linear / tokens};
}

std::vector<float> dit_trainer::sample(std::string const& caption, std::int64_t steps) {
  std::int64_t const width = settings_.model().patch_width(), count = settings_.tokens() * width;
  random_numbers draw(std::uint64_t(settings_.seed), stream::sampling);
  std::vector<float> x(static_cast<std::size_t>(count)), velocity(x.size());
  for (float& e : x) e = float(draw.normal());
  put_caption(0, caption.empty() ? nullptr : &caption);
  host_.key_lengths[0] = std::int32_t(settings_.tokens() + settings_.model().prefix());
  for (std::int64_t i = 0; i < steps; ++i) {
    put_time(0, 1 - double(i) / double(steps));
    std::ranges::copy(x, host_.noised.begin());
    upload(1);
    memory_.graph(sample_graph);
    buffer<float> const planned = memory_.take<float>(count, "velocity");
    model_.predict(on_->op(), on_->dit(), memory_, input(1), weights(), memory_.at<float>(ids_.rotary), planned);
    on_->op().download(count, static_cast<float const*>(planned), velocity.data());
    for (std::size_t j = 0; j < x.size(); ++j) x[j] -= velocity[j] / float(steps);
  }
  return x;
}

}  // namespace trainer
