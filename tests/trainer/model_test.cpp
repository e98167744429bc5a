// The whole model: its loss against an independent f64 implementation, its gradient by finite differences, f32 and
// flash against f64, and its memory against the plan.
#include "model.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "naive_model.hpp"
#include "support.hpp"

using namespace trainer;
using test::has, test::relative_error;

namespace {

long allocations = 0;  // calls of operator new in this program

model_shape const tiny{.vocabulary = 11,
                       .layers = 2,
                       .hidden = 12,
                       .q_heads = 4,
                       .kv_heads = 2,
                       .head_dim = 6,
                       .ffn = 10,
                       .rope_theta = 50};
model_shape const flash_tiny{.vocabulary = 256,
                             .layers = 2,
                             .hidden = 48,
                             .q_heads = 4,
                             .kv_heads = 2,
                             .head_dim = 32,
                             .ffn = 40,
                             .rope_theta = 10000};

/// A model with its memory, ready to run.
template <class T>
struct bench {
  model_shape shape;
  std::int64_t batch, sequence;
  lanewise::thread_pool pool;
  parameter_layout layout;
  language_model<T> model;
  step_memory memory;
  std::vector<T> weights, gradients, rotary, loss;
  std::vector<std::int32_t> tokens, targets;

  bench(model_shape const& s, attention_kind attention, std::int64_t batch, std::int64_t sequence, int threads = 2,
        std::int64_t segments = 1)
      : shape(s), batch(batch), sequence(sequence), pool(threads), layout(s), model(s, attention, layout, segments),
        weights(std::size_t(layout.full().count())), gradients(weights.size()),
        rotary(std::size_t(sequence * s.head_dim)), loss(std::size_t(batch * sequence)) {
    cpu_ops<T> const op(workers::planning_for(threads));
    token_batch const none{batch, sequence, nullptr, nullptr};
    memory.graph(0);
    model.train(op, memory, none, {}, nullptr, 0, nullptr, nullptr);
    memory.graph(1);
    model.evaluate(op, memory, none, {}, nullptr, nullptr);
    memory.graph(2);
    model.predict(op, memory, none, 0, {}, nullptr, nullptr);
    memory.plan();
    memory.bind();
    initialise(layout, s, 5, weights.data());
    std::vector<double> const noise = test::normal<double>(weights.size(), 8, 0.2);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += T(noise[i]);  // so that no derivative is small
    fill_rotary_table(sequence, s.head_dim, s.rope_theta, rotary.data());
    std::mt19937 engine(3);
    for (std::int64_t i = 0; i < batch * sequence; ++i) {
      tokens.push_back(std::int32_t(engine() % unsigned(s.vocabulary)));
      targets.push_back(std::int32_t(engine() % unsigned(s.vocabulary)));
    }
  }
  token_batch input() const { return {batch, sequence, tokens.data(), targets.data()}; }
  /// The mean loss; gradients afterwards hold its derivatives.
  double train() {
    std::fill(gradients.begin(), gradients.end(), T(0));
    memory.graph(0);
    model.train(cpu_ops<T>{workers(pool)}, memory, input(), {weights.data()}, rotary.data(), T(1) / T(batch * sequence),
                gradients.data(), loss.data());
    return mean();
  }
  double evaluate() {
    memory.graph(1);
    model.evaluate(cpu_ops<T>{workers(pool)}, memory, input(), {weights.data()}, rotary.data(), loss.data());
    return mean();
  }
  double mean() const {
    double sum = 0;
    for (T l : loss) sum += double(l);
    return sum / double(loss.size());
  }
};

}  // namespace

void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

TEST_CASE("the loss is that of an independent implementation in f64") {
  for (bool const zeroed : {false, true}) {
    CAPTURE(zeroed);
    bench<double> b(tiny, zeroed ? attention_kind::ablated : attention_kind::exact, 2, 9);
    test::naive_model naive{11, 2, 12, 4, 2, 6, 10, 50, {}, zeroed};
    for (parameter const& p : b.layout.full().all())
      naive.weights[p.name].assign(b.weights.begin() + p.offset, b.weights.begin() + p.offset + p.count);
    b.evaluate();
    for (std::size_t row = 0; row < 2; ++row) {
      auto const part = [&](std::vector<std::int32_t> const& v) {
        return std::vector(v.begin() + std::ptrdiff_t(row) * 9, v.begin() + std::ptrdiff_t(row + 1) * 9);
      };
      std::vector<double> const expected = naive.losses(part(b.tokens), part(b.targets));
      for (std::size_t t = 0; t < 9; ++t) REQUIRE(b.loss[row * 9 + t] == doctest::Approx(expected[t]).epsilon(1e-11));
    }
    CHECK(b.train() == doctest::Approx(b.evaluate()).epsilon(1e-14));
  }
}

TEST_CASE("the gradient of every weight, by finite differences") {
  for (attention_kind const kind : {attention_kind::exact, attention_kind::ablated}) {
    bench<double> b(tiny, kind, 2, 7, 1);  // thousands of evaluations, each too small to share
    b.train();
    std::vector<double> const analytic = b.gradients;
    for (parameter const& p : b.layout.full().all()) {
      std::vector<double> part(b.weights.begin() + p.offset, b.weights.begin() + p.offset + p.count);
      std::vector<double> const gradient(analytic.begin() + p.offset, analytic.begin() + p.offset + p.count);
      auto const loss = [&] {
        std::copy(part.begin(), part.end(), b.weights.begin() + p.offset);
        return b.evaluate();
      };
      bool const serves_attention = p.name.find("self_attn") != std::string::npos || has(p.name, "input_layernorm");
      if (kind == attention_kind::ablated && serves_attention) {
        for (double g : gradient) REQUIRE(g == 0.0);
        continue;
      }
      test::check_gradient(p.name, part, gradient, loss, p.count > 60 ? 7 : 1);
      loss();
    }
  }
}

TEST_CASE("f32 and flash: the gradient is within twice the error of the f32 softmax chain") {
  bench<double> reference(flash_tiny, attention_kind::exact, 2, 70);
  bench<float> exact(flash_tiny, attention_kind::exact, 2, 70), flash(flash_tiny, attention_kind::flash, 2, 70);
  for (std::size_t i = 0; i < exact.weights.size(); ++i) reference.weights[i] = double(exact.weights[i]);
  double const loss = reference.train();
  CHECK(exact.train() == doctest::Approx(loss).epsilon(1e-6));
  CHECK(flash.train() == doctest::Approx(loss).epsilon(1e-6));
  double const exact_error = relative_error(exact.gradients, reference.gradients);
  CHECK(exact_error < 1e-5);
  CHECK(relative_error(flash.gradients, reference.gradients) <= 2 * exact_error + 2e-7);
}

TEST_CASE("gradients are added to what is there") {
  bench<float> b(flash_tiny, attention_kind::flash, 1, 20);
  b.train();
  std::vector<float> const once = b.gradients;
  b.memory.graph(0);
  b.model.train(cpu_ops<float>{workers(b.pool)}, b.memory, b.input(), {b.weights.data()}, b.rotary.data(), 1.f / 20,
                b.gradients.data(), b.loss.data());
  std::vector<double> twice(once.begin(), once.end());
  for (double& g : twice) g *= 2;
  CHECK(relative_error(b.gradients, twice) < 1e-6);
}

TEST_CASE("rows without a target change neither loss nor gradient, whatever they hold") {
  auto const run = [](std::int32_t filler) {
    bench<float> b(flash_tiny, attention_kind::flash, 2, 30);
    for (std::size_t i = 30 + 17; i < 60; ++i) {  // the end of the second sequence: later tokens reach no earlier row
      b.targets[i] = no_target;
      b.tokens[i] = filler;
    }
    b.train();
    return std::pair(b.gradients, b.loss);
  };
  CHECK(run(0) == run(201));
}

TEST_CASE("a step gives the same bits on any number of threads") {
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
    bench<float> one(flash_tiny, kind, 3, 90, 1), two(flash_tiny, kind, 3, 90, 2), five(flash_tiny, kind, 3, 90, 5);
    CHECK(one.train() == two.train());
    CHECK(one.train() == five.train());
    CHECK(one.gradients == two.gradients);
    CHECK(one.gradients == five.gradients);
  }
}

TEST_CASE("nothing is read after its planned lifetime") {
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
    bench<float> plain(flash_tiny, kind, 2, 40), poisoned(flash_tiny, kind, 2, 40);
    poisoned.memory.poison_released(true);
    CHECK(plain.train() == poisoned.train());
    CHECK(plain.gradients == poisoned.gradients);
    CHECK(plain.evaluate() == poisoned.evaluate());
  }
}

TEST_CASE("a step allocates nothing, and its plan is sound") {
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact, attention_kind::ablated}) {
    bench<float> b(flash_tiny, kind, 2, 40);
    REQUIRE(b.memory.planned().verify());
    b.train();
    allocations = 0;
    b.train();
    b.evaluate();
    CHECK(allocations == 0);
  }
}

TEST_CASE("layers that are computed again: the same bits in less memory, whatever the number of segments") {
  model_shape deep = flash_tiny;
  deep.layers = 5;
  for (attention_kind const kind : {attention_kind::flash, attention_kind::exact}) {
    bench<float> whole(deep, kind, 2, 40);
    double const loss = whole.train();
    for (std::int64_t const segments : {2, 3, 5}) {
      CAPTURE(segments);
      bench<float> cut(deep, kind, 2, 40, 2, segments);
      cut.memory.poison_released(true);
      CHECK(cut.train() == loss);
      CHECK(cut.gradients == whole.gradients);
      allocations = 0;
      CHECK(cut.train() == loss);
      CHECK(allocations == 0);
      CHECK(cut.memory.peak() < whole.memory.peak());
    }
  }
}

TEST_CASE("a step uses its plan to the last byte") {
  // With exact attention: flash scratch is sized for whole tiles and for every thread, and need not be touched.
  bench<float> b(flash_tiny, attention_kind::exact, 2, 40);
  std::size_t const peak = b.memory.peak();
  auto* const storage = const_cast<std::byte*>(b.memory.storage());
  std::memset(storage, 0xa5, peak);
  b.train();
  std::size_t last = peak;
  while (last > 0 && storage[last - 1] == std::byte(0xa5)) --last;
  CHECK(peak - last < lanewise::arena_alignment);
}

TEST_CASE("layout: Hugging Face's names in order, without gaps; the same seed draws the same weights") {
  parameter_layout const layout(tiny);
  std::int64_t at = 0;
  for (parameter const& p : layout.full().all()) {
    CHECK(p.offset == at);
    CHECK(p.is_matrix == !has(p.name, "norm"));
    at += p.count;
  }
  CHECK(at == layout.full().count());
  CHECK(layout.full().all().size() == 1 + 2 * 11 + 1);
  CHECK(layout.full().all()[2].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(layout.full().all()[2].shape == std::vector<std::int64_t>{24, 12});

  std::vector<float> a(std::size_t(layout.full().count())), b(a.size()), c(a.size());
  initialise(layout, tiny, 1, a.data());
  initialise(layout, tiny, 1, b.data());
  initialise(layout, tiny, 2, c.data());
  CHECK(a == b);
  CHECK(a != c);
  auto const deviation = [&](parameter const& p) {
    double square = 0;
    for (std::int64_t i = 0; i < p.count; ++i)
      square += double(a[std::size_t(p.offset + i)]) * double(a[std::size_t(p.offset + i)]);
    return std::sqrt(square / double(p.count));
  };
  for (parameter const& p : layout.full().all()) {
    bool const to_residual = has(p.name, "o_proj") || has(p.name, "down_proj");
    double const expected = !p.is_matrix ? 1 : to_residual ? 0.02 / std::sqrt(2.0 * 2) : 0.02;
    CHECK(deviation(p) == doctest::Approx(expected).epsilon(0.25));  // 120 numbers: a standard error of 6.5%
  }
}
