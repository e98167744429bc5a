#include "profile_command.hpp"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "dit_command.hpp"
#include "dit_trainer.hpp"
#include "lm_command.hpp"
#include "lm_trainer.hpp"
#include "op_profile.hpp"
#include "option_checks.hpp"
#include "run_directory.hpp"

namespace trainer {
namespace {

constexpr std::int64_t steps_before = 2;  // the first touches memory and loads kernels

void print_row(std::string const& name, double calls, double seconds, double flop, double total) {
  std::printf("%-52s %8.0f %10.3f %6.1f%%", name.c_str(), calls, 1e3 * seconds, 100 * seconds / total);
  if (flop > 0 && seconds > 0) std::printf(" %10.1f", flop / seconds / 1e9);
  std::printf("\n");
}

/// Groups with their ops below them, all per step.
void print(profile_report const& r, double whole, double steps) {
  double const total = r.total();
  std::printf("%-52s %8s %10s %7s %10s\n", "per step", "calls", "ms", "share", "GFLOP/s");
  for (std::size_t i = 0; i < r.ops.size();) {
    std::size_t end = i;
    op_time group{.group = r.ops[i].group};
    for (; end < r.ops.size() && r.ops[end].group == group.group; ++end) {
      group.calls += r.ops[end].calls;
      group.seconds += r.ops[end].seconds;
      group.flop += r.ops[end].flop;
    }
    print_row(group.group, double(group.calls) / steps, group.seconds / steps, group.flop / steps, total / steps);
    for (; i < end; ++i)
      print_row("  " + r.ops[i].name, double(r.ops[i].calls) / steps, r.ops[i].seconds / steps, r.ops[i].flop / steps,
                total / steps);
  }
  print_row("between the calls", 0, r.between / steps, 0, total / steps);
  print_row("whole step", 0, total / steps, 0, total / steps);
  print_row("a step without measuring its ops", 0, whole / steps, 0, total / steps);
}

std::string to_json(profile_report const& r, double whole, double steps, std::string const& device, std::size_t plan) {
  nlohmann::ordered_json ops = nlohmann::ordered_json::array();
  for (op_time const& t : r.ops)
    ops.push_back({{"group", t.group},
                   {"op", t.name},
                   {"calls", double(t.calls) / steps},
                   {"seconds", t.seconds / steps},
                   {"flop", t.flop / steps}});
  return nlohmann::ordered_json{{"device", device},
                                {"steps", steps},
                                {"plan_bytes", plan},
                                {"seconds", whole / steps},
                                {"seconds_measured", r.total() / steps},
                                {"between", r.between / steps},
                                {"ops", ops}}
      .dump(2);
}

template <class Options>
void add_measuring(CLI::App& app, profile_options<Options>& o) {
  app.add_option("--repeat", o.repeat, "steps that are timed whole, and again op by op, after two that are not")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->check(beyond_64_bits)
      ->group("Profile");
  app.add_option("--report", o.report, "JSON file to write the table to. Default: none is written")->group("Profile");
}

/// Starts a run on `on`, measures its steps and says where their time went.
template <class Options, class Settings, class Trainer>
int measure(profile_options<Options> const& o, Settings const& s, profiled_device& on, Trainer&& run) {
  run.start();
  std::printf("%sdevice: %s\nattention: %s\nmemory: plan %.1f MiB\n", describe(s).c_str(), on.describe().c_str(),
              run.attention_kernels().c_str(), double(run.plan().peak()) / (1 << 20));
  std::int64_t t = 0;
  auto const steps = [&](std::int64_t count) {
    for (std::int64_t const end = t + count; t < end;) run.step(++t);
  };
  steps(steps_before);
  on.profile().turn(false);
  auto const begin = std::chrono::steady_clock::now();
  steps(o.repeat);
  double const whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  on.profile().turn(true);
  on.profile().clear();
  steps(o.repeat);
  profile_report const r = on.profile().read();
  print(r, whole, double(o.repeat));
  if (!o.report.empty())
    write_report(o.report, s.min_free_gb, to_json(r, whole, double(o.repeat), on.describe(), run.plan().peak()) + "\n");
  return 0;
}

}  // namespace

void add_profile_options(CLI::App& app, profile_options<lm_options>& o) {
  add_lm_options(app, o.run);
  add_measuring(app, o);
}
void add_profile_options(CLI::App& app, profile_options<dit_options>& o) {
  add_dit_options(app, o.run);
  add_measuring(app, o);
}

int run_profile(profile_options<lm_options> const& o) {
  lm_settings const s = resolve(o.run);
  text_data const data = load_text_of(s);
  std::unique_ptr<device> const measured = device_of(s);
  profiled_device on(*measured);
  return measure(o, s, on, lm_trainer(s, data, on, budget_of(s, *measured)));
}

int run_profile(profile_options<dit_options> const& o) {
  dit_settings s = resolve(o.run);
  recordings const data = load_recordings_of(s);
  s = with_data(s, data);
  std::unique_ptr<device> const measured = device_of(s);
  profiled_device on(*measured);
  return measure(o, s, on, dit_trainer(s, data, on, budget_of(s, *measured)));
}

}  // namespace trainer
