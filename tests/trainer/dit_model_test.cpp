// The whole diffusion transformer: its gradient by finite differences in both styles, flash against the softmax chain,
// recomputed layers, padding, threads and memory.
#include "dit_model.hpp"

#include "support.hpp"

using namespace trainer;
using test::relative_error;

namespace {

dit_shape const tiny_ace{.layers = 2,
                         .hidden = 12,
                         .q_heads = 4,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .ffn = 10,
                         .channels = 3,
                         .context = 2,
                         .patch = 2,
                         .caption_width = 5,
                         .window = 1,
                         .rotated = 6,
                         .rope_theta = 50};
dit_shape const tiny_mm3{.style = dit_style::mm3,
                         .layers = 2,
                         .hidden = 12,
                         .q_heads = 2,
                         .kv_heads = 2,
                         .head_dim = 6,
                         .ffn = 10,
                         .channels = 3,
                         .context = 2,
                         .patch = 1,
                         .rotated = 4,
                         .rope_theta = 50,
                         .epsilon = 1e-5};
dit_shape const flash_ace{.layers = 4,
                          .hidden = 32,
                          .q_heads = 2,
                          .kv_heads = 1,
                          .head_dim = 32,
                          .ffn = 24,
                          .channels = 4,
                          .caption_width = 8,
                          .window = 5,
                          .rotated = 32};

/// A model with its memory and an input, ready to run. The last element of a batch of several is padded.
template <class T>
struct bench {
  dit_shape shape;
  std::int64_t batch, tokens, captions;
  lanewise::thread_pool pool;
  cpu_ops<T> op{workers(pool)};
  cpu_dit_ops<T> dit{workers(pool)};
  dit_layout layout;
  dit_model<T> model;
  step_memory memory;
  std::vector<T> weights, adapters, gradients, rotary, noised, context, time, time_gap, target, row_weight,
      channel_weight, loss;
  std::vector<std::int32_t> lengths, caption, caption_lengths;

  bench(dit_shape const& s, attention_kind attention, std::int64_t batch, std::int64_t tokens,
        std::int64_t segments = 1, int threads = 2, adaptation const& how = {})
      : shape(s), batch(batch), tokens(tokens), captions(4), pool(threads), layout(s, how),
        model(s, attention, layout, segments), weights(std::size_t(layout.full().count())),
        adapters(std::size_t(layout.adapters().count())), gradients(std::size_t(layout.trained().count())),
        rotary(std::size_t((tokens + s.prefix()) * s.rotated)), loss(std::size_t(batch * tokens)) {
    auto const numbers = [&](std::int64_t count, unsigned seed) {
      std::vector<float> const x = test::normal<float>(std::size_t(count), seed);
      return std::vector<T>(x.begin(), x.end());
    };
    std::int64_t const rows = batch * tokens;
    noised = numbers(rows * s.patch_width(), 1);
    context = numbers(rows * s.patch * s.context, 2);
    time = numbers(batch * time_features, 3);
    time_gap = numbers(batch * time_features, 4);
    target = numbers(rows * s.patch_width(), 5);
    channel_weight.assign(std::size_t(s.patch_width()), T(1.5));
    row_weight.assign(std::size_t(rows), T(1) / T(rows));
    lengths.assign(std::size_t(batch), std::int32_t(tokens + s.prefix()));
    caption_lengths.assign(std::size_t(batch), 4);
    for (std::int64_t i = 0; i < batch * captions; ++i) caption.push_back(std::int32_t(i * 37 % caption_entries));
    if (batch > 1) {
      lengths.back() -= 2;
      caption_lengths.back() = 3;
      row_weight[row_weight.size() - 1] = row_weight[row_weight.size() - 2] = 0;
    }
    fill_rotary_table(tokens + s.prefix(), s.rotated, s.rope_theta, rotary.data());
    std::vector<float> drawn(weights.size()), noise = test::normal<float>(weights.size(), 8, 0.2);
    initialise(layout, s, 5, drawn.data());
    for (std::size_t i = 0; i < drawn.size(); ++i) weights[i] = T(drawn[i] + noise[i]);  // no derivative is small
    adapters = numbers(std::int64_t(adapters.size()), 9);
    for (T& a : adapters) a *= T(0.3);

    cpu_ops<T> const planner(workers::planning_for(threads));
    cpu_dit_ops<T> const dit_planner(workers::planning_for(threads));
    memory.graph(0);
    model.train(planner, dit_planner, memory, input(), {}, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    memory.graph(1);
    std::vector<T> unused;
    model.predict(planner, dit_planner, memory, input(), {}, nullptr, nullptr);
    memory.plan();
    memory.bind();
  }
  dit_batch<T> input() const {
    return {batch,       tokens,          captions,       noised.data(),  context.data(),
            time.data(), time_gap.data(), lengths.data(), caption.data(), caption_lengths.data()};
  }
  /// The weighted loss; gradients afterwards hold its derivatives.
  double train() {
    std::fill(gradients.begin(), gradients.end(), T(0));
    memory.graph(0);
    model.train(op, dit, memory, input(), {weights.data(), nullptr, adapters.data()}, rotary.data(), target.data(),
                row_weight.data(), channel_weight.data(), gradients.data(), loss.data());
    double sum = 0;
    for (std::size_t i = 0; i < loss.size(); ++i) sum += double(loss[i]) * double(row_weight[i]);
    return sum;
  }
};

}  // namespace

TEST_CASE("the gradient of every weight, by finite differences, in both styles and with recomputed layers") {
  for (dit_shape const& shape : {tiny_ace, tiny_mm3})
    for (std::int64_t const segments : {1, 2}) {
      CAPTURE(segments);
      bench<double> b(shape, attention_kind::exact, 2, 5, segments, 1);
      b.train();
      std::vector<double> const analytic = b.gradients;
      for (parameter const& p : b.layout.full().all()) {
        std::vector<double> part(b.weights.begin() + p.offset, b.weights.begin() + p.offset + p.count);
        std::vector<double> const gradient(analytic.begin() + p.offset, analytic.begin() + p.offset + p.count);
        auto const loss = [&] {
          std::copy(part.begin(), part.end(), b.weights.begin() + p.offset);
          return b.train();
        };
        test::check_gradient(p.name, part, gradient, loss, p.count > 60 ? std::size_t(p.count / 13) : 1);
        loss();
      }
    }
}

TEST_CASE("recomputed layers change no bit, and need less memory") {
  bench<float> all(flash_ace, attention_kind::flash, 2, 40), some(flash_ace, attention_kind::flash, 2, 40, 2),
      most(flash_ace, attention_kind::flash, 2, 40, 4);
  double const loss = all.train();
  CHECK(some.train() == loss);
  CHECK(most.train() == loss);
  CHECK(some.gradients == all.gradients);
  CHECK(most.gradients == all.gradients);
  CHECK(some.memory.peak() < all.memory.peak());
  CHECK(most.memory.peak() < some.memory.peak());
}

TEST_CASE("padded tokens and captions change neither loss nor gradient, whatever they hold") {
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
    bench<float> clean(flash_ace, kind, 2, 40), dirty(flash_ace, kind, 2, 40);
    for (std::size_t i = 0; i < std::size_t(2 * flash_ace.patch_width()); ++i) {
      dirty.noised[dirty.noised.size() - 1 - i] = 1000.f;
      dirty.target[dirty.target.size() - 1 - i] = -1000.f;
    }
    dirty.caption.back() = 200;
    CHECK(clean.train() == dirty.train());
    CHECK(clean.gradients == dirty.gradients);
  }
}

TEST_CASE("f32 and flash: the gradient is within twice the error of the f32 softmax chain") {
  bench<double> reference(flash_ace, attention_kind::exact, 2, 40);
  bench<float> exact(flash_ace, attention_kind::exact, 2, 40), flash(flash_ace, attention_kind::flash, 2, 40);
  double const loss = reference.train();
  CHECK(exact.train() == doctest::Approx(loss).epsilon(1e-6));
  CHECK(flash.train() == doctest::Approx(loss).epsilon(1e-6));
  double const error = relative_error(exact.gradients, reference.gradients);
  CHECK(error < 1e-5);
  CHECK(relative_error(flash.gradients, reference.gradients) <= 2 * error + 2e-7);
}

TEST_CASE("a step gives the same bits on any number of threads, and reads nothing after its planned lifetime") {
  bench<float> one(flash_ace, attention_kind::flash, 2, 70, 2, 1), four(flash_ace, attention_kind::flash, 2, 70, 2, 4);
  four.memory.poison_released(true);
  CHECK(one.train() == four.train());
  CHECK(one.gradients == four.gradients);
  REQUIRE(one.memory.planned().verify());
}

namespace {

adaptation adapted(adapter_kind kind, dit_shape const& shape) {
  adaptation how{.adapter = {kind, 2, 3, 4}, .sites = {}};
  for (projection_site const& p : dit_sites(shape.style)) how.sites.push_back(p.name);
  return how;
}

}  // namespace

TEST_CASE("the gradient of every adapter, by finite differences, and the frozen weights stay as they are") {
  for (dit_shape const& shape : {tiny_ace, tiny_mm3})
    for (adapter_kind const kind : {adapter_kind::lora, adapter_kind::lokr}) {
      bench<double> b(shape, attention_kind::exact, 2, 5, 2, 1, adapted(kind, shape));
      std::vector<double> const before = b.weights;
      b.train();
      std::vector<double> const analytic = b.gradients;
      REQUIRE(analytic.size() == b.adapters.size());
      for (parameter const& p : b.layout.adapters().all()) {
        std::vector<double> part(b.adapters.begin() + p.offset, b.adapters.begin() + p.offset + p.count);
        std::vector<double> const gradient(analytic.begin() + p.offset, analytic.begin() + p.offset + p.count);
        auto const loss = [&] {
          std::copy(part.begin(), part.end(), b.adapters.begin() + p.offset);
          return b.train();
        };
        test::check_gradient(p.name, part, gradient, loss, p.count > 60 ? std::size_t(p.count / 13) : 1);
        loss();
      }
      CHECK(b.weights == before);
    }
}

TEST_CASE("the published 2B model has the published number of LoKR weights on its eleven sites") {
  dit_shape const b2{.layers = 24, .hidden = 2048, .q_heads = 16, .kv_heads = 8, .head_dim = 128, .ffn = 6144};
  for (auto const& [dim, millions] : {std::pair{512, 75.5}, {256, 66.1}}) {
    adaptation how = adapted(adapter_kind::lokr, b2);
    how.adapter = {adapter_kind::lokr, dim, double(dim), 6};
    CHECK(double(dit_layout(b2, how).trained().count()) / 1e6 == doctest::Approx(millions).epsilon(0.05 / millions));
  }
}
