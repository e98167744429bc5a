// The profile of a step: every call counted, its work computed, its time where it belongs, and no bit changed.
#include <numeric>
#include <thread>

#include "counting_text.hpp"
#include "lm_trainer.hpp"
#include "op_profile.hpp"
#include "support.hpp"

using namespace trainer;

namespace {

/// A clock that a test sets.
class told_stopwatch final : public stopwatch {
 public:
  explicit told_stopwatch(double const& now) : now_(now) {}
  void mark() override { marks_.push_back(now_); }
  std::vector<double> laps() override {
    std::vector<double> seconds(marks_.size());
    std::adjacent_difference(marks_.begin(), marks_.end(), seconds.begin());
    if (!seconds.empty()) seconds.erase(seconds.begin());
    marks_.clear();
    return seconds;
  }

 private:
  double const& now_;
  std::vector<double> marks_;
};

op_time const& row(profile_report const& r, std::string const& group, std::string const& name) {
  for (op_time const& t : r.ops)
    if (t.group == group && t.name == name) return t;
  FAIL("no row ", group, ", ", name);
  return r.ops.front();
}

}  // namespace

TEST_CASE("calls of one kind are summed, pauses stand apart, the slowest group is first") {
  double now = 0;
  op_profile profile(std::make_unique<told_stopwatch>(now));
  auto const takes = [&](double seconds) { return [&now, seconds] { now += seconds; }; };
  profile.measure("a", "forgotten", 1, takes(100));
  profile.clear();
  profile.measure("a", "x", 10, takes(1));
  now += 0.5;
  profile.measure("b", "y", 0, takes(4));
  now += 0.25;
  profile.measure("a", "z", 0, takes(1.5));
  profile.measure("a", "x", 20, takes(1));
  now += 9;  // after the last call: no part of the step
  profile_report const r = profile.read();
  REQUIRE(r.ops.size() == 3);
  CHECK(r.ops[0].name == "y");
  CHECK(r.ops[1].name == "x");
  CHECK(r.ops[2].name == "z");
  CHECK(r.ops[1].calls == 2);
  CHECK(r.ops[1].seconds == 2);
  CHECK(r.ops[1].flop == 30);
  CHECK(r.between == 0.75);
  CHECK(r.total() == 8.25);
  CHECK(profile.read().ops.empty());
}

TEST_CASE("the CPU's stopwatch measures what passes between its marks, and forgets") {
  std::unique_ptr<device> const on = make_cpu_device(1);
  std::unique_ptr<stopwatch> const watch = on->make_stopwatch();
  CHECK(watch->laps().empty());
  watch->mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  watch->mark();
  watch->mark();
  std::vector<double> const laps = watch->laps();
  REQUIRE(laps.size() == 2);
  CHECK(laps[0] >= 0.02);
  CHECK(laps[1] < 0.02);
  CHECK(watch->laps().empty());
}

TEST_CASE("a step of the language model: calls and work by hand, results to the bit") {
  lm_settings const s = resolve(parse_lm({"--preset", "tiny", "--threads", "2"}));
  text_data const text = test::counting_text();
  std::unique_ptr<device> const plain = device_of(s);
  profiled_device measured(*plain);
  lm_trainer a(s, text, *plain, {std::size_t(1) << 30, 0}), b(s, text, measured, {std::size_t(1) << 30, 0});
  a.start();
  b.start();
  CHECK(a.step(1).loss == b.step(1).loss);
  measured.profile().clear();
  CHECK(a.step(2).loss == b.step(2).loss);
  CHECK(a.get(state_array::weights) == b.get(state_array::weights));
  CHECK(a.plan().peak() == b.plan().peak());

  // tiny: 2 layers, hidden 64, 2 query heads and 1 key/value head of 32, SwiGLU 128; 4 windows of 64 bytes
  step_result const third = b.step(3);
  CHECK(third.loss > 0);
  profile_report const r = measured.profile().read();
  double const layer = 64 * 4 * 32 + 2 * 32 * 64 + 3 * 64 * 128, forward = 2.0 * 4 * 64 * (2 * layer + 64 * 256);
  CHECK(row(r, "products", "linear").calls == 2 * (2 * 4 + 1));  // steps 2 and 3
  CHECK(row(r, "products", "linear").flop == 2 * forward);
  CHECK(row(r, "products", "linear backward").flop == 2 * 2 * forward);
  std::string const site = "causal 64x64, 2/1 heads of 32";
  CHECK(row(r, "attention", "forward, " + site).calls == 4);
  CHECK(row(r, "attention", "forward, " + site).flop == 4 * 4.0 * 32 * 4 * 2 * (64 * 65 / 2));
  CHECK(row(r, "attention", "backward, " + site).flop == 4 * 10.0 * 32 * 4 * 2 * (64 * 65 / 2));
  CHECK(row(r, "norms", "rms norm").calls == 2 * 5);
  CHECK(row(r, "optimiser", "AdamW").calls == 2);
  for (op_time const& t : r.ops) CHECK(t.seconds > 0);
  measured.profile().turn(false);
  b.step(4);
  CHECK(measured.profile().read().ops.empty());
}

TEST_CASE("live pairs are those that the mask lets through, one by one") {
  for (attention_mask const mask : {attention_mask::none(), attention_mask::causal(), attention_mask::window(3)})
    for (auto const [queries, keys] : {std::pair(1, 1), std::pair(9, 9), std::pair(4, 11), std::pair(11, 4)}) {
      attention_shape const s{2, queries, keys, 3, 1, 32, mask};
      std::int64_t live = 0;
      for (std::int32_t q = 0; q < queries; ++q)
        for (std::int32_t k = 0; k < keys; ++k) live += variant_of(mask, nullptr)({0, 0, q, k});
      CHECK(s.live_pairs() == 6 * live);
    }
  CHECK(site_name({1, 3000, 3000, 16, 8, 128, attention_mask::window(128)}) ==
        "window 128 3000x3000, 16/8 heads of 128");
  CHECK(site_name({1, 625, 1877, 32, 8, 128, attention_mask::none()}) == "full 625x1877, 32/8 heads of 128");
}
