// Twins: what is compared, against runs of their own; the first difference; the verdict.
#include "twin.hpp"

#include <cmath>

#include "counting_text.hpp"
#include "dit_command.hpp"
#include "dit_trainer.hpp"
#include "lm_trainer.hpp"
#include "sounds.hpp"
#include "support.hpp"
#include "trained_base.hpp"
#include "twin_command.hpp"

using namespace trainer;
using test::error_of, test::has;

namespace {

struct run {
  lm_settings s;
  std::unique_ptr<device> on;
  lm_trainer trainer;
  explicit run(std::vector<std::string> more)
      : s(resolve(parse_lm((more.insert(more.begin(), {"--preset", "tiny"}), more)))), on(device_of(s)),
        trainer(s, text(), *on, {std::size_t(1) << 30, 0}) {
    trainer.start();
  }
  static text_data const& text() {
    static text_data const data = test::counting_text();
    return data;
  }
};

twin_report twins(std::vector<std::string> const& first, std::vector<std::string> const& second, std::int64_t steps) {
  run a(first), b(second);
  return compare_twins(a.trainer, b.trainer, steps);
}

}  // namespace

TEST_CASE("the same run on another number of threads is identical") {
  twin_report const r = twins({"--threads", "1"}, {"--threads", "3"}, 6);
  CHECK(r.first_difference == 0);
  CHECK(r.verdict() == drift::identical);
  CHECK(r.largest_loss_difference() == 0);
  for (twin_step const& s : r.steps) {
    CHECK(s.gradient == 0);
    CHECK(s.weights == 0);
  }
  CHECK(r.held_out[0] == r.held_out[1]);
  CHECK(r.change_apart == 0);
  CHECK(r.cosine == doctest::Approx(1).epsilon(1e-12));
}

TEST_CASE("flash and exact: every figure is that of two runs on their own") {
  constexpr std::int64_t steps = 8;
  std::vector<std::string> const common{"--threads", "2", "--warmup", "1"};
  std::vector<std::string> exact = common;
  exact.insert(exact.end(), {"--attn", "exact"});
  twin_report const r = twins(common, exact, steps);
  run runs[] = {run(common), run(exact)};
  std::vector<float> start[2], end[2];
  for (int i = 0; i < 2; ++i) {
    start[i] = runs[i].trainer.get(state_array::weights);
    CHECK(r.held_out_before[std::size_t(i)] == runs[i].trainer.validate());
    for (std::int64_t t = 1; t <= steps; ++t)
      CHECK(r.steps[std::size_t(t - 1)].loss[std::size_t(i)] == runs[i].trainer.step(t).loss);
    CHECK(r.held_out[std::size_t(i)] == runs[i].trainer.validate());
    end[i] = runs[i].trainer.get(state_array::weights);
  }
  double square[2] = {}, base = 0, dot = 0, apart = 0;
  for (std::size_t j = 0; j < start[0].size(); ++j) {
    double const a = double(end[0][j] - start[0][j]), b = double(end[1][j] - start[1][j]);
    square[0] += a * a, square[1] += b * b, dot += a * b, apart += (a - b) * (a - b);
    base += double(start[0][j]) * double(start[0][j]);
  }
  CHECK(r.change[0] == doctest::Approx(std::sqrt(square[0] / base)).epsilon(1e-9));
  CHECK(r.change[1] == doctest::Approx(std::sqrt(square[1] / base)).epsilon(1e-9));
  CHECK(r.cosine == doctest::Approx(dot / std::sqrt(square[0] * square[1])).epsilon(1e-9));
  CHECK(r.change_apart == doctest::Approx(std::sqrt(apart / square[0])).epsilon(1e-9));
  CHECK(r.steps.back().weights == doctest::Approx(r.change_apart).epsilon(1e-3));  // dW is rounded to f32 above
  CHECK(r.first_difference == 1);
  CHECK(r.steps[0].gradient > 0);
  CHECK(r.steps[0].gradient < 1e-5);  // as the f32 chain's own error, model_test.cpp
  CHECK(r.verdict() == drift::close);
}

TEST_CASE("the first difference is found in the weights where loss and gradient still agree") {
  // One warm-up step, then cosines of different lengths: the rates part at step 2.
  REQUIRE(learning_rate_at(1, 1, 12, 1) == learning_rate_at(1, 1, 24, 1));
  REQUIRE(learning_rate_at(2, 1, 12, 1) != learning_rate_at(2, 1, 24, 1));
  twin_report const r = twins({"--steps", "12", "--warmup", "1"}, {"--steps", "24", "--warmup", "1"}, 3);
  CHECK(r.first_difference == 2);
  CHECK(r.steps[1].loss[0] == r.steps[1].loss[1]);
  CHECK(r.steps[1].gradient == 0);
  CHECK(r.steps[1].weights > 0);
  CHECK(r.steps[2].loss[0] != r.steps[2].loss[1]);
}

TEST_CASE("two optimisers get the same first gradient and make different weights of it") {
  twin_report const r = twins({}, {"--optimizer", "muon"}, 2);
  CHECK(r.steps[0].gradient == 0);
  CHECK(r.steps[0].weights > 0);
  CHECK(r.steps[1].gradient > 0);
}

TEST_CASE("the halves of a step are the step, and between them lies the gradient, whatever the optimiser makes of it") {
  for (std::string const optimiser : {"adamw", "muon"}) {
    run whole({"--optimizer", optimiser}), halves({"--optimizer", optimiser});
    for (std::int64_t t = 1; t <= 3; ++t) {
      step_result const expected = whole.trainer.step(t);
      double const loss = halves.trainer.compute_gradients(t);
      double square = 0;
      for (float g : halves.trainer.get(state_array::gradients)) square += double(g) * double(g);
      step_result const r = halves.trainer.update(t, loss);
      CHECK(std::sqrt(square) == doctest::Approx(r.gradient_norm).epsilon(1e-9));
      CHECK(r.loss == expected.loss);
      CHECK(r.gradient_norm == expected.gradient_norm);
      CHECK(r.learning_rate == expected.learning_rate);
    }
    CHECK(halves.trainer.get(state_array::weights) == whole.trainer.get(state_array::weights));
  }
}

TEST_CASE("close is a hundredth of what was learned") {
  twin_report r;
  r.first_difference = 3;
  r.held_out_before = {3, 3};
  r.held_out = {2, 2.009};
  CHECK(r.verdict() == drift::close);
  r.held_out[1] = 1.989;
  CHECK(r.verdict() == drift::apart);
  r.held_out = {3.5, 3.5001};  // nothing was learned
  CHECK(r.verdict() == drift::apart);
}

TEST_CASE("the second run's options: instead of the first's, but not its data") {
  twin_options<lm_options> o;
  o.run = parse_lm({"--preset", "tiny", "--batch", "2", "--attn", "flash"});
  o.second = "--attn exact --ckpt 2";
  lm_settings const s = resolve(second_of(o));
  CHECK(s.attn == "exact");
  CHECK(s.ckpt == 2);
  CHECK(s.batch == 2);
  for (std::string const second : {"--seed 3", "--data elsewhere", "--context 32", "--max-len 9"}) {
    o.second = second;
    CHECK(has(error_of([&] { second_of(o); }), "bad-option: --second: both runs have the same --"));
  }
}

TEST_CASE("twins of dit: their losses are two runs' own, and the second keeps the first's data and crops") {
  test::scratch dir;
  test::write_tones(dir.path);
  recordings const data = load_recordings({.paths = {dir.path}, .bands = 32, .validation_share = 0.25, .seed = 1});
  auto const started = [&](std::string const& attn, auto const& use) {
    dit_settings const s = with_data(resolve(parse_dit({"--preset", "tiny", "--attn", attn, "--threads", "2"})), data);
    std::unique_ptr<device> const on = device_of(s);
    dit_trainer run(s, data, *on, {std::size_t(1) << 30, 0});
    run.start();
    return use(run);
  };
  twin_report const r = started("flash", [&](dit_trainer& first) {
    return started("exact", [&](dit_trainer& second) { return compare_twins(first, second, 4); });
  });
  for (std::size_t i = 0; i < 2; ++i)
    started(i == 0 ? "flash" : "exact", [&](dit_trainer& alone) {
      CHECK(r.held_out_before[i] == alone.validate().loss);
      for (std::int64_t t = 1; t <= 4; ++t) CHECK(r.steps[std::size_t(t - 1)].loss[i] == alone.step(t).loss);
      CHECK(r.held_out[i] == alone.validate().loss);
      return 0;
    });
  CHECK(r.first_difference == 1);
  CHECK(r.steps[0].gradient > 0);
  CHECK(r.steps[0].gradient < 1e-5);

  twin_options<dit_options> o;
  o.run = parse_dit({"--preset", "tiny", "--attn", "flash"});
  o.second = "--attn exact --ckpt 2";
  CHECK(resolve(second_of(o)).attn == "exact");
  for (std::string const second : {"--seed 3", "--data elsewhere", "--crop 32", "--bands 16", "--prompt x"}) {
    o.second = second;
    CHECK(has(error_of([&] { second_of(o); }), "bad-option: --second: both runs have the same --"));
  }
}

TEST_CASE("adapters over two hundred epochs: flash drifts from exact less than bf16 products do from f32") {
  test::trained_base const base;
  text_data const text = test::counting_text(40, 20000);
  for (std::string const kind : {"lora", "lokr"}) {
    auto const twin = [&](std::vector<std::string> const& second) {
      std::vector<std::string> options{
          "--preset", "tiny",      "--base", base.path.string(), "--adapter", kind,   "--steps", "600", "--context",
          "48",       "--threads", "2",      "--batch",          "1",         "--lr", "0.001"};
      lm_settings const a = resolve(parse_lm(options));
      options.insert(options.end(), second.begin(), second.end());
      lm_settings const b = resolve(parse_lm(options));
      std::unique_ptr<device> const on = device_of(a);
      lm_trainer first(a, text, *on, {std::size_t(1) << 30, 0}), other(b, text, *on, {std::size_t(1) << 30, 0});
      first.start(), other.start();
      REQUIRE(first.windows_per_epoch() == 3);
      return compare_twins(first, other, 600);
    };
    twin_report const exact = twin({"--attn", "exact"}), rounded = twin({"--mirror", "bf16"});
    MESSAGE(kind, ": apart by ", exact.change_apart, " and ", rounded.change_apart, ", cosine ", exact.cosine, " and ",
            rounded.cosine, ", held-out gap ", exact.held_out[1] - exact.held_out[0], " and ",
            rounded.held_out[1] - rounded.held_out[0]);
    CHECK(exact.change[0] > 1e-3);
    CHECK(exact.change_apart < rounded.change_apart);
    CHECK(exact.steps[0].gradient < 1e-5);
    CHECK(rounded.steps[0].gradient > 1e-4);
  }
}
