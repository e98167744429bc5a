// The search over plans: never over its budget, the longest that fits, what is set stays; its table of terms; what a
// refusal names.
#include <random>

#include "counting_text.hpp"
#include "lm_fit.hpp"
#include "memory_terms.hpp"
#include "plan_budget.hpp"
#include "support.hpp"
#include "trained_base.hpp"

using namespace trainer;
using test::error_of, test::has;

namespace {

lm_settings settings(std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--preset", "tiny", "--threads", "2"});
  return resolve(parse_lm(more));
}

/// Every combination that the search may come to with this window, by its place in the order of preference: fewest
/// segments first, then the largest batch.
std::vector<lm_settings> choices(lm_settings s, std::int64_t context) {
  std::vector<lm_settings> all;
  s.context = context;
  for (std::int64_t const segments : {1, 2})
    for (std::int64_t const batch : {4, 2, 1}) {
      s.ckpt = segments, s.batch = batch, s.accumulate = 4 / batch;
      all.push_back(s);
    }
  return all;
}

std::string shape_of(lm_settings const& s) {
  return std::to_string(s.context) + " " + std::to_string(s.ckpt) + " " + std::to_string(s.batch) + " " +
         std::to_string(s.accumulate);
}

}  // namespace

TEST_CASE("random budgets: it fits exactly when the plan does, with the longest window, then fewest segments") {
  lm_settings const s = settings();
  std::unique_ptr<device> const on = make_cpu_device(2);
  struct tried {
    lm_settings settings;
    std::size_t bytes;
  };
  std::vector<tried> all;  // longest window first, in each the order of preference
  for (std::int64_t context = 64; context >= shortest_context; --context)
    for (lm_settings const& c : choices(s, context)) all.push_back({c, lm_trainer::estimate(c, *on)});
  std::size_t smallest = all[0].bytes, largest = 0;
  for (tried const& t : all) smallest = std::min(smallest, t.bytes), largest = std::max(largest, t.bytes);
  std::mt19937_64 engine(7);
  for (int i = 0; i < 60; ++i) {
    std::size_t const budget = i == 0   ? smallest
                               : i == 1 ? smallest - 1
                               : i == 2 ? largest
                                        : smallest / 2 + engine() % (largest - smallest / 2);
    CAPTURE(budget);
    lm_fit const r = fit_lm(s, *on, budget, 64);
    CHECK(r.fits == (r.plan.peak() <= budget));
    CHECK(r.plan.peak() == lm_trainer::estimate(r.settings, *on));
    CHECK(r.settings.windows_per_step() == s.windows_per_step());
    auto const expected = std::ranges::find_if(all, [&](tried const& t) { return t.bytes <= budget; });
    REQUIRE(r.fits == (expected != all.end()));
    if (r.fits) CHECK(shape_of(r.settings) == shape_of(expected->settings));
    else CHECK_FALSE(r.refusal.empty());
  }
}

TEST_CASE("cards of several sizes: three steps run in what was found, or nothing is found") {
  text_data const text = test::counting_text();
  std::unique_ptr<device> const on = make_cpu_device(2);
  int fitting = 0;
  for (double const mebibytes : {1.0, 1.75, 2.0, 2.5, 3.5}) {
    std::size_t const budget = std::size_t(mebibytes * (1 << 20));
    lm_fit const r = fit_lm(settings(), *on, budget, 64);
    if (!r.fits) {
      CHECK(has(r.refusal, "--layers 1 --ckpt 1 ("));
      continue;
    }
    ++fitting;
    lm_trainer run(r.settings, text, *on, {budget, 0});
    run.start();
    for (std::int64_t t = 1; t <= 3; ++t) run.step(t);
    CHECK(run.plan().peak() <= budget);
  }
  CHECK(fitting >= 2);
  CHECK(fitting <= 4);
}

TEST_CASE("what is set stays as it is") {
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::size_t const some = lm_trainer::estimate(settings(), *on) * 3 / 4;
  for (std::vector<std::string> const& pinned :
       std::vector<std::vector<std::string>>{{"--context", "48"},
                                             {"--batch", "4"},
                                             {"--accumulate", "1"},
                                             {"--ckpt", "1"},
                                             {"--context", "64", "--ckpt", "2"}}) {
    lm_settings const s = settings(pinned);
    lm_fit const r = fit_lm(s, *on, some, 64);
    CAPTURE(pinned[0]);
    CHECK(r.fits);
    if (s.from_user.contains("context")) CHECK(r.settings.context == s.context);
    if (s.from_user.contains("ckpt")) CHECK(r.settings.ckpt == s.ckpt);
    if (s.from_user.contains("batch") || s.from_user.contains("accumulate")) {
      CHECK(r.settings.batch == s.batch);
      CHECK(r.settings.accumulate == s.accumulate);
    }
  }
  // Each is what would have helped, were it not set.
  std::vector<std::string> const context{"--context", "64"}, batch{"--batch", "4"}, ckpt{"--ckpt", "1"};
  auto const all_but = [&](std::vector<std::string> const& open) {
    std::vector<std::string> set;
    for (auto const& o : {context, batch, ckpt})
      if (o != open) set.insert(set.end(), o.begin(), o.end());
    return set;
  };
  for (auto const& [open, smaller] : {std::pair(context, std::vector<std::string>{"--context", "63"}),
                                      std::pair(batch, std::vector<std::string>{"--batch", "2"}),
                                      std::pair(ckpt, std::vector<std::string>{"--ckpt", "2"})}) {
    CAPTURE(open[0]);
    std::size_t const enough = lm_trainer::estimate(settings(smaller), *on);
    CHECK(fit_lm(settings(all_but(open)), *on, enough, 64).fits);
    CHECK_FALSE(fit_lm(settings(all_but({})), *on, enough, 64).fits);
  }
}

TEST_CASE("the terms sum to the plan, and the ones that are known are right") {
  lm_settings const s = settings();
  std::unique_ptr<device> const on = make_cpu_device(2);
  lanewise::arena_plan const plan = lm_trainer::plan_for(s, *on);
  std::size_t sum = 0;
  for (memory_term const& t : terms_of(plan)) sum += t.bytes;
  CHECK(sum == plan.peak());
  CHECK(terms_of(plan).back().bytes == plan.peak() - plan.statistics().live_at_peak);
  auto const term = [&](std::string const& name) {
    for (memory_term const& t : terms_of(plan))
      if (t.name == name) return t;
    return memory_term{name, 0, 0};
  };
  std::size_t const weights = std::size_t(parameter_layout(s.model()).full().count()) * sizeof(float);
  for (std::string const name : {"weights", "gradients", "first moments", "second moments"})
    CHECK(term(name).bytes == (weights + 127) / 128 * 128);
  CHECK(term("gate_up").tensors <= 2);
  CHECK(term("library workspace").bytes == 0);
}

TEST_CASE("a refusal names the cheapest changes, each with the plan that it leads to") {
  static test::trained_base const base;
  std::unique_ptr<device> const on = make_cpu_device(2);
  lm_settings const exact = settings({"--attn", "exact", "--context", "64"});
  std::size_t const flash = lm_trainer::estimate(settings(), *on);
  REQUIRE(flash < lm_trainer::estimate(exact, *on));
  std::string const text = cheapest_levers(exact, *on, flash);
  CHECK(has(text, "these would fit: --attn flash (" + mebibytes(flash) + "), --batch 2 --accumulate 2 ("));
  CHECK(std::ranges::count(text, '(') == 3);

  lm_settings const adapted = settings({"--base", base.path.string(), "--adapter", "lora", "--rank", "4"});
  lm_settings mirrored = adapted;
  mirrored.mirror = "bf16-f32";
  CHECK(has(cheapest_levers(adapted, *on, lm_trainer::estimate(mirrored, *on)),
            "--mirror bf16-f32 (" + mebibytes(lm_trainer::estimate(mirrored, *on)) + ")"));
  CHECK(has(cheapest_levers(settings({"--base", base.path.string()}), *on, 1 << 20), "--adapter lora ("));

  std::string const none = cheapest_levers(settings(), *on, 1000);
  CHECK(has(none, "the cheapest changes: --batch 1 --accumulate 4 ("));
  CHECK(has(none, ", not enough alone), --ckpt 2 ("));
  CHECK(has(none, "; not even all of them would fit"));
  lm_settings together = settings();
  together.batch = 1, together.accumulate = 4, together.ckpt = 2;
  std::size_t const both = lm_trainer::estimate(together, *on);
  CHECK(has(cheapest_levers(settings(), *on, both),
            "; together --batch 1 --accumulate 4 --ckpt 2 (" + mebibytes(both) + ") would fit"));
}
