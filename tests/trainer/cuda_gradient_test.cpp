// Both models' gradients on the GPU against f64 on the same f32 numbers: the GPU's error is at most twice that of the
// CPU's f32 plus 2e-7, three roundings of f32, over all tensors together; and plus 2e-6 in each, since a tensor of few
// numbers may be lucky in either. The CPU's f32 shares no arithmetic with the GPU; its error is what the precision
// costs, wherever it is computed. Where activations are rounded to bf16, which of two neighbours a number near their
// middle becomes depends on the last bit of a sum, and such a step of 2^-9 falls into one tensor or another: there a
// tensor's error is measured by the CPU's in it or over all, whichever is larger.
#include <algorithm>
#include <functional>

#include "device.hpp"
#include "dit_model.hpp"
#include "model.hpp"
#include "support.hpp"

using namespace trainer;
using test::relative_error;

namespace {

/// The derivatives by everything that is trained, and which are whose.
struct gradient {
  std::vector<double> values;
  std::vector<parameter> tensors;
  std::vector<double> of(parameter const& p) const {
    return {values.begin() + p.offset, values.begin() + p.offset + p.count};
  }
};

/// Where a pass runs.
template <class T>
struct place {
  ops<T> const &op, &planner;
  dit_ops<T> const &dit, &dit_planner;
  plan_memory const& memory;
  device* on;  ///< null: it needs no room of its own
};

struct f64_place {
  lanewise::thread_pool pool{2};
  cpu_ops<double> op{workers(pool)}, planner{workers::planning_for(2)};
  cpu_dit_ops<double> dit{workers(pool)}, dit_planner{workers::planning_for(2)};
  place<double> get() const { return {op, planner, dit, dit_planner, host_memory(), nullptr}; }
};
place<float> place_of(device& on) { return {on.op(), on.planner(), on.dit(), on.dit_planner(), on.memory(), &on}; }

/// The arrays of a pass in one plan with it.
template <class T>
class desk {
 public:
  explicit desk(place<T> const& where) : where_(where) {
    if (where.on) room_ = memory_.persistent<std::byte>(std::int64_t(where.on->room()), "room");
  }
  template <class U>
  lanewise::tensor_id put(std::vector<U> const& x) {
    lanewise::tensor_id const id = memory_.persistent<U>(std::int64_t(x.size()), "input");
    uploads_.push_back([this, id, x] { where_.op.upload(std::int64_t(x.size()), x.data(), memory_.at<U>(id)); });
    return id;
  }
  /// Numbers that f32 has, as T.
  lanewise::tensor_id put_numbers(std::vector<float> const& x) { return put(std::vector<T>(x.begin(), x.end())); }
  lanewise::tensor_id zeros(std::int64_t count) { return memory_.persistent<T>(count, "result"); }

  /// Plans pass(planning ops), fills the arrays, runs pass(ops) and returns the numbers of `result`.
  template <class Pass>
  std::vector<double> run(lanewise::tensor_id result, std::int64_t count, Pass const& pass) {
    memory_.graph(0);
    pass(where_.planner, where_.dit_planner, memory_);
    memory_.plan();
    memory_.bind(where_.memory);
    if (where_.on) where_.on->give_room(memory_.template at<std::byte>(room_));
    for (auto const& upload : uploads_) upload();
    memory_.graph(0);
    pass(where_.op, where_.dit, memory_);
    std::vector<T> values(static_cast<std::size_t>(count));
    where_.op.download(count, static_cast<T const*>(memory_.at<T>(result)), values.data());
    return {values.begin(), values.end()};
  }
  /// Null while the plan is recorded.
  template <class U>
  U* at(lanewise::tensor_id id) const {
    return memory_.bound() ? memory_.at<U>(id) : nullptr;
  }

 private:
  place<T> where_;
  step_memory memory_;
  lanewise::tensor_id room_{};
  std::vector<std::function<void()>> uploads_;
};

/// Gains near 1, the rest so large that no derivative is small.
std::vector<float> drawn(parameter_list const& list, unsigned seed) {
  std::vector<float> x = test::normal<float>(std::size_t(list.count()), seed, 0.15);
  for (parameter const& p : list.all())
    if (p.shape.size() == 1)
      for (std::int64_t i = 0; i < p.count; ++i) x[std::size_t(p.offset + i)] += 1;
  return x;
}

/// The arrays that a layout describes.
template <class T>
struct weight_ids {
  lanewise::tensor_id full, half, adapters, gradients;
  std::int64_t count;
  std::vector<parameter> tensors;
  weight_ids(desk<T>& d, weight_layout const& layout)
      : count(layout.trained().count()), tensors(layout.trained().all()) {
    full = d.put_numbers(drawn(layout.full(), 1));
    std::vector<lanewise::bf16> rounded;
    for (float x : drawn(layout.half(), 2)) rounded.push_back(lanewise::from_float<lanewise::bf16>(x));
    half = d.put(rounded);
    adapters = d.put_numbers(test::normal<float>(std::size_t(layout.adapters().count()), 3, 0.1));
    gradients = d.zeros(count);
  }
  weight_arrays<T> arrays(desk<T> const& d) const {
    return {d.template at<T>(full), d.template at<lanewise::bf16>(half), d.template at<T>(adapters)};
  }
};

template <class T>
gradient lm_gradients(place<T> const& where, attention_kind kind, adaptation const& how) {
  model_shape const shape{.layers = 3, .hidden = 128, .q_heads = 4, .kv_heads = 2, .head_dim = 32, .ffn = 256};
  constexpr std::int64_t batch = 2, sequence = 150;
  parameter_layout const layout(shape, how);
  language_model<T> model(shape, kind, layout);
  desk<T> d(where);
  weight_ids<T> const w(d, layout);
  std::vector<std::int32_t> words[2];
  std::mt19937 engine(3);
  for (auto& list : words)
    for (std::int64_t i = 0; i < batch * sequence; ++i) list.push_back(std::int32_t(engine() % 256));
  std::vector<float> table(std::size_t(sequence * shape.head_dim));
  fill_rotary_table(sequence, shape.head_dim, shape.rope_theta, table.data());
  auto const tokens = d.put(words[0]), targets = d.put(words[1]), rotary = d.put_numbers(table),
             loss = d.zeros(batch * sequence);
  return {d.run(w.gradients, w.count,
                [&](ops<T> const& op, dit_ops<T> const&, step_memory& memory) {
                  model.train(
                      op, memory,
                      {batch, sequence, d.template at<std::int32_t>(tokens), d.template at<std::int32_t>(targets)},
                      w.arrays(d), d.template at<T>(rotary), T(1.f / float(batch * sequence)),
                      d.template at<T>(w.gradients), d.template at<T>(loss));
                }),
          w.tensors};
}

template <class T>
gradient dit_gradients(place<T> const& where, dit_style style, attention_kind kind, adaptation const& how) {
  bool const ace = style == dit_style::ace;
  dit_shape const shape{.style = style,
                        .layers = 3,
                        .hidden = 96,
                        .q_heads = 2,
                        .kv_heads = ace ? 1 : 2,
                        .head_dim = 64,
                        .ffn = 200,
                        .channels = 24,
                        .patch = ace ? 2 : 1,
                        .caption_width = 32,
                        .window = 20,
                        .rotated = ace ? 64 : 32,
                        .rope_theta = 100,
                        .epsilon = ace ? 1e-6 : 1e-5};
  constexpr std::int64_t batch = 2, tokens = 130, captions = 37;
  std::int64_t const rows = batch * tokens, positions = tokens + shape.prefix();
  dit_layout const layout(shape, how);
  dit_model<T> model(shape, kind, layout);
  desk<T> d(where);
  weight_ids<T> const w(d, layout);
  auto const numbers = [&](std::int64_t count, unsigned seed) {
    return d.put_numbers(test::normal<float>(std::size_t(count), seed));
  };
  std::vector<float> table(std::size_t(positions * shape.rotated)), weights(std::size_t(rows), 1.f / float(rows));
  fill_rotary_table(positions, shape.rotated, shape.rope_theta, table.data());
  for (std::size_t i = 0; i < 30; ++i) weights[weights.size() - 1 - i] = 0;
  std::vector<std::int32_t> text;
  for (std::int64_t i = 0; i < batch * captions; ++i) text.push_back(std::int32_t(i * 37 % caption_entries));
  auto const noised = numbers(rows * shape.patch_width(), 4), time = numbers(batch * time_features, 5),
             time_gap = numbers(batch * time_features, 6), target = numbers(rows * shape.patch_width(), 7),
             rotary = d.put_numbers(table), row_weight = d.put_numbers(weights),
             channel_weight = d.put_numbers(std::vector<float>(std::size_t(shape.patch_width()), 1.5f)),
             lengths = d.put(std::vector<std::int32_t>{std::int32_t(positions), std::int32_t(positions - 30)}),
             caption = d.put(text), caption_lengths = d.put(std::vector<std::int32_t>{captions, 9}),
             loss = d.zeros(rows);
  return {d.run(w.gradients, w.count,
                [&](ops<T> const& op, dit_ops<T> const& dit, step_memory& memory) {
                  auto const at = [&](lanewise::tensor_id id) { return d.template at<T>(id); };
                  auto const integers = [&](lanewise::tensor_id id) { return d.template at<std::int32_t>(id); };
                  dit_batch<T> const in{.batch = batch,
                                        .tokens = tokens,
                                        .caption_length = captions,
                                        .noised = at(noised),
                                        .context = nullptr,
                                        .time = at(time),
                                        .time_gap = at(time_gap),
                                        .key_lengths = integers(lengths),
                                        .caption = integers(caption),
                                        .caption_lengths = integers(caption_lengths)};
                  model.train(op, dit, memory, in, w.arrays(d), at(rotary), at(target), at(row_weight),
                              at(channel_weight), at(w.gradients), at(loss));
                }),
          w.tensors};
}

struct trained {
  char const* what;
  adapter_settings adapter;
  mirror storage;
  adaptation how(std::span<projection_site const> sites) const {
    adaptation a{.adapter = adapter, .sites = {}, .storage = storage};
    if (adapter.kind != adapter_kind::none)
      for (projection_site const& p : sites) a.sites.push_back(p.name);
    return a;
  }
};
trained const all_trained[] = {{"every weight", {}, mirror::f32},
                               {"LoRA", {adapter_kind::lora, 4, 8, 0}, mirror::f32},
                               {"LoKR, w2 in two parts", {adapter_kind::lokr, 3, 6, 4}, mirror::f32},
                               {"LoKR, w2 whole, bf16-f32", {adapter_kind::lokr, 64, 0, 8}, mirror::bf16_f32},
                               {"LoRA, bf16", {adapter_kind::lora, 4, 8, 0}, mirror::bf16}};

struct fixture {
  f64_place f64;
  std::unique_ptr<device> cpu = make_cpu_device(2), gpu = make_cuda_device(arithmetic::f32);

  /// gradients(place, attention) of every place.
  template <class Gradients>
  void compare(std::string const& what, mirror storage, Gradients const& gradients) {
    CAPTURE(what);
    gradient const right = gradients(f64.get(), attention_kind::exact),
                   same = gradients(place_of(*cpu), attention_kind::flash);
    double const cost = relative_error(same.values, right.values), least = storage == mirror::bf16 ? cost : 0;
    for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
      gradient const first = gradients(place_of(*gpu), kind);
      double const error = relative_error(first.values, right.values);
      MESSAGE(what, kind == attention_kind::flash ? ", flash: GPU " : ", exact: GPU ", error, ", CPU ", cost);
      CHECK(error <= 2 * cost + 2e-7);
      CHECK(error > 0);
      for (parameter const& p : right.tensors) {
        CAPTURE(p.name);
        double const own = std::max(relative_error(same.of(p), right.of(p)), least);
        CHECK(relative_error(first.of(p), right.of(p)) <= 2 * own + 2e-6);
      }
      CHECK(gradients(place_of(*gpu), kind).values == first.values);
    }
  }
};

}  // namespace

TEST_CASE_FIXTURE(fixture, "the language model's gradients") {
  for (trained const& t : all_trained)
    compare(std::string("lm, ") + t.what, t.storage,
            [&](auto const& where, attention_kind kind) { return lm_gradients(where, kind, t.how(lm_sites)); });
}

TEST_CASE_FIXTURE(fixture, "the diffusion transformer's gradients in both styles") {
  for (dit_style const style : {dit_style::ace, dit_style::mm3})
    for (trained const& t : all_trained)
      compare(std::string(style == dit_style::ace ? "ace, " : "mm3, ") + t.what, t.storage,
              [&](auto const& where, attention_kind kind) {
                return dit_gradients(where, style, kind, t.how(dit_sites(style)));
              });
}

TEST_CASE_FIXTURE(fixture, "coarser arithmetic has its own error: no better, or it did not run, and no worse") {
  struct bar {
    arithmetic how;
    double least, most;
  };
  auto const gradients = [](auto const& where, attention_kind kind) {
    return dit_gradients(where, dit_style::ace, kind, all_trained[0].how({})).values;
  };
  std::vector<double> const right = gradients(f64.get(), attention_kind::exact);
  for (bar const b :
       {bar{arithmetic::f32_split, 0, 1e-5}, bar{arithmetic::tf32, 1e-5, 5e-3}, bar{arithmetic::bf16, 1e-4, 5e-2}}) {
    std::unique_ptr<device> const on = make_cuda_device(b.how);
    for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
      std::vector<double> const first = gradients(place_of(*on), kind);
      double const error = relative_error(first, right);
      MESSAGE(std::string(name_of(b.how)), kind == attention_kind::flash ? ", flash: " : ", exact: ", error);
      CHECK(error > b.least);
      CHECK(error < b.most);
      CHECK(gradients(place_of(*on), kind) == first);
    }
  }
}
