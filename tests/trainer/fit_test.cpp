// The search over plans of both commands: never over its budget, the longest that fits, what is set stays; its table of
// terms; what a refusal names; plans against the least that any placement needs.
#include <random>

#include "counting_text.hpp"
#include "dit_fit.hpp"
#include "lm_fit.hpp"
#include "lokr_sizes.hpp"
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

/// What counts of recordings for a plan: a caption of `length` bytes.
recordings captioned(std::size_t length) {
  recordings data;
  data.all.push_back({"a", std::string(length, 'x'), {}});
  return data;
}

/// Crops as long as --longest or the preset would have them.
dit_settings dit_settings_of(std::vector<std::string> more, std::int64_t crop) {
  more.insert(more.end(), {"--threads", "2"});
  dit_settings s = resolve(parse_dit(more));
  decide_crops(s, std::max(crop, s.crop_max));
  return s;
}

std::string shape_of(dit_settings const& s) {
  return std::to_string(s.layers) + " " + std::to_string(s.crop_min) + "-" + std::to_string(s.crop_max) + " " +
         std::to_string(s.ckpt) + " " + std::to_string(s.batch) + " " + std::to_string(s.accumulate);
}

template <class Settings>
struct tried {
  Settings settings;
  std::size_t bytes;
};

/// fit(budget) fits exactly when its plan does, and then with the first of `all` that does, which come in the order of
/// preference. estimate(settings) is the peak of their plan.
template <class Settings, class Fit, class Estimate>
void check_random_budgets(std::vector<tried<Settings>> const& all, Fit const& fit, Estimate const& estimate) {
  std::size_t smallest = all[0].bytes, largest = 0;
  for (tried<Settings> const& t : all) smallest = std::min(smallest, t.bytes), largest = std::max(largest, t.bytes);
  std::mt19937_64 engine(7);
  for (int i = 0; i < 60; ++i) {
    std::size_t const budget = i == 0   ? smallest
                               : i == 1 ? smallest - 1
                               : i == 2 ? largest
                                        : smallest / 2 + engine() % (largest - smallest / 2);
    CAPTURE(budget);
    auto const r = fit(budget);
    CHECK(r.fits == (r.plan.peak() <= budget));
    CHECK(r.plan.peak() == estimate(r.settings));
    auto const expected = std::ranges::find_if(all, [&](auto const& t) { return t.bytes <= budget; });
    REQUIRE(r.fits == (expected != all.end()));
    if (r.fits) CHECK(shape_of(r.settings) == shape_of(expected->settings));
    else CHECK_FALSE(r.refusal.empty());
  }
}

}  // namespace

TEST_CASE("random budgets: it fits exactly when the plan does, with the longest window, then fewest segments") {
  lm_settings const s = settings();
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::vector<tried<lm_settings>> all;  // longest window first, in each the order of preference
  for (std::int64_t context = 64; context >= shortest_context; --context)
    for (lm_settings const& c : choices(s, context)) all.push_back({c, lm_trainer::estimate(c, *on)});
  check_random_budgets(
      all,
      [&](std::size_t budget) {
        lm_fit r = fit_lm(s, *on, budget, 64);
        CHECK(r.settings.windows_per_step() == s.windows_per_step());
        return r;
      },
      [&](lm_settings const& c) { return lm_trainer::estimate(c, *on); });
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

TEST_CASE("dit, random budgets: all layers first, then the longest crop, the fewest segments, the largest batch") {
  recordings const data = captioned(20);
  dit_settings const s = dit_settings_of({"--preset", "tiny", "--patch", "2"}, 64);
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::vector<tried<dit_settings>> all;
  for (std::int64_t const layers : {2, 1})
    for (std::int64_t tokens = 32; tokens >= shortest_crop; --tokens)
      for (std::int64_t const segments : {1, 2})
        for (std::int64_t const batch : {4, 2, 1}) {
          if (segments > layers) continue;
          dit_settings c = s;
          c.layers = layers, c.ckpt = segments, c.batch = batch, c.accumulate = 4 / batch;
          c.crop_max = 2 * tokens, c.crop_min = tokens;
          all.push_back({c, dit_trainer::estimate(c, data, *on)});
        }
  check_random_budgets(
      all,
      [&](std::size_t budget) {
        CHECK(fit_dit(s, data, *on, budget, 64, s.layers).settings.layers == s.layers);
        return fit_dit(s, data, *on, budget, 64, 1);
      },
      [&](dit_settings const& c) { return dit_trainer::estimate(c, data, *on); });
}

TEST_CASE("dit: what is set stays as it is") {
  recordings const data = captioned(20);
  std::unique_ptr<device> const on = make_cpu_device(2);
  std::size_t const some = dit_trainer::estimate(dit_settings_of({"--preset", "tiny"}, 64), data, *on) * 3 / 4;
  for (std::vector<std::string> const& pinned : std::vector<std::vector<std::string>>{
           {"--crop-max", "48"}, {"--crop", "40"}, {"--crop-min", "30"}, {"--batch", "4"}, {"--ckpt", "1"}}) {
    std::vector<std::string> options = pinned;
    options.insert(options.end(), {"--preset", "tiny"});
    dit_settings const s = dit_settings_of(options, 64);
    dit_fit const r = fit_dit(s, data, *on, some, 64, 2);
    CAPTURE(pinned[0]);
    CHECK(r.fits);
    if (pinned[0] == "--crop-max" || pinned[0] == "--crop") CHECK(r.settings.crop_max == s.crop_max);
    if (pinned[0] == "--crop" || pinned[0] == "--crop-min") CHECK(r.settings.crop_min == s.crop_min);
    if (pinned[0] == "--batch") CHECK(r.settings.batch == s.batch);
    if (pinned[0] == "--ckpt") CHECK(r.settings.ckpt == s.ckpt);
  }
}

TEST_CASE("published sizes on cards: the plan is within the card, or three changes are named") {
  recordings const data = captioned(765);
  std::unique_ptr<device> const on = make_cpu_device(2);
  constexpr std::size_t reserve = std::size_t(256) << 20;
  int fitting = 0;
  for (std::string const preset : {"2b", "xl"})
    for (std::size_t const gibibytes : {8, 12, 16, 24, 32}) {
      CAPTURE(preset);
      CAPTURE(gibibytes);
      dit_settings const s = dit_settings_of({"--preset", preset, "--adapter", "lora", "--mirror", "bf16"}, 6000);
      std::size_t const available = (gibibytes << 30) - reserve;
      dit_fit const r = fit_dit(s, data, *on, available, 6000, s.layers);
      CHECK(r.fits == (r.plan.peak() <= available));
      CHECK(r.settings.layers == s.layers);
      if (r.fits) ++fitting;
      else CHECK(std::ranges::count(r.refusal, '(') >= 3);
      if (gibibytes >= 12) CHECK(r.fits);
      if (gibibytes == 32) CHECK(r.settings.crop_max == 6000);
    }
  CHECK(fitting == 9);  // XL's mirror alone is 7.9 GiB
  // Every weight trained, on a card that has no room for one layer.
  dit_settings const whole = dit_settings_of({"--preset", "xl"}, 6000);
  CHECK(std::ranges::count(fit_dit(whole, data, *on, std::size_t(1) << 30, 6000, whole.layers).refusal, '(') >= 3);
}

TEST_CASE("LoKR's plans are within 1% of what is live at once, whatever its sizes, the batch and the captions") {
  std::unique_ptr<device> const on = make_cpu_device(2);
  test::for_each_lokr_size(
      [&](std::string const& dim, std::string const& factor, std::string const& batch, std::size_t caption) {
        dit_settings const s = dit_settings_of({"--preset", "2b", "--layers", "4", "--crop", "1250", "--adapter",
                                                "lokr", "--dim", dim, "--factor", factor, "--batch", batch},
                                               1250);
        lanewise::arena_plan const plan = dit_trainer::plan_for(s, captioned(caption), *on);
        lanewise::arena_statistics const& n = plan.statistics();
        REQUIRE(plan.verify());
        CHECK(n.peak >= n.most_live);
        CHECK(double(n.peak) <= 1.01 * double(n.most_live));
      });
}

namespace {

/// LoRA of rank 16 on a Qwen3 of this size, its projections in bf16, without the files of one.
lm_settings adapted_qwen3(std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                          std::int64_t context, std::string const& attn) {
  lm_settings s = settings({"--batch", "1", "--attn", attn});
  s.layers = layers, s.hidden = hidden, s.ffn = ffn, s.heads = heads, s.kv_heads = 8, s.head_dim = 128;
  s.vocabulary_size = 217'204;
  s.base = "qwen3", s.adapter = "lora", s.rank = 16, s.alpha = 16, s.sites = "q,k,v,o,gate,up,down";
  s.mirror = "bf16-f32";
  s.context = context;
  return s;
}

}  // namespace

TEST_CASE("published language models: the plan is within 1% of what is live at once, flash and exact") {
  std::unique_ptr<device> const on = make_cpu_device(2);
  for (std::string const attn : {"flash", "exact"})
    for (lm_settings const& s :
         {adapted_qwen3(28, 1024, 3072, 16, 1708, attn), adapted_qwen3(28, 1024, 3072, 16, 3915, attn),
          adapted_qwen3(28, 2048, 6144, 16, 1278, attn), adapted_qwen3(28, 2048, 6144, 16, 1824, attn),
          adapted_qwen3(36, 2560, 9728, 32, 2113, attn)}) {
      CAPTURE(attn);
      CAPTURE(s.context);
      lanewise::arena_statistics const n = lm_trainer::plan_for(s, *on).statistics();
      CHECK(n.peak >= n.most_live);
      CHECK(double(n.peak) <= 1.01 * double(n.most_live));
      MESSAGE(attn, " ", s.hidden, " ", s.context, ": ", double(n.peak) / double(n.most_live));
    }
}

TEST_CASE("golden fits: what moves every run's length shows here, and is looked at") {
  // Exact attention alone, whose plan is the same for every kind of CPU.
  std::unique_ptr<device> const on = make_cpu_device(2);
  auto const lm = [&](std::size_t gibibytes) {
    return shape_of(fit_lm(adapted_qwen3(28, 1024, 3072, 16, 4096, "exact"), *on, gibibytes << 30, 4096).settings);
  };
  CHECK(lm(5) == "2724 28 1 1");
  CHECK(lm(8) == "4096 28 1 1");
  CHECK(lm(16) == "4096 4 1 1");
  recordings const data = captioned(640);
  auto const dit = [&](std::size_t gibibytes) {
    dit_settings const s = dit_settings_of({"--preset", "2b", "--adapter", "lokr", "--dim", "512", "--factor", "6",
                                            "--mirror", "bf16-f32", "--attn", "exact"},
                                           6000);
    return shape_of(fit_dit(s, data, *on, gibibytes << 30, 6000, s.layers).settings);
  };
  CHECK(dit(8) == "24 3000-6000 16 1 1");
  CHECK(dit(16) == "24 3000-6000 4 1 1");
}
