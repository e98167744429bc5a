#include "twin_command.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dit_command.hpp"
#include "dit_trainer.hpp"
#include "error.hpp"
#include "lm_command.hpp"
#include "lm_trainer.hpp"
#include "run_directory.hpp"
#include "twin.hpp"

namespace trainer {
namespace {

constexpr std::size_t shown_steps = 10;

/// One of the two runs, and what it stands on.
template <class Settings, class Trainer, class Data>
struct twin_run {
  Settings settings;
  std::unique_ptr<device> on;
  Trainer trainer;
  twin_run(Settings const& s, Data const& data)
      : settings(s), on(device_of(s)), trainer(s, data, *on, budget_of(s, *on)) {
    trainer.start();
  }
  void describe(char const* which) const {
    std::printf("%s: %s, attention %s, plan %.1f MiB\n", which, on->describe().c_str(),
                trainer.attention_kernels().c_str(), double(trainer.plan().peak()) / (1 << 20));
  }
};

void require_twins(trainee const& a, trainee const& b) {
  auto const names = [](trainee const& r) {
    std::vector<std::pair<std::string, std::vector<std::int64_t>>> all;
    for (parameter const& p : r.state().trained().all()) all.emplace_back(p.name, p.shape);
    return all;
  };
  if (names(a) != names(b) || a.base_digest() != b.base_digest())
    throw bad_option("--second: the second run trains other tensors, or from another base");
}

void print(twin_report const& r) {
  std::printf("%6s %12s %12s %12s %12s %12s\n", "step", "loss, first", "second", "difference", "gradient", "weights");
  std::size_t const count = r.steps.size();
  for (std::size_t i = 0; i < count; ++i) {
    bool const on_grid = i == 0 || (i + 1) * shown_steps / count != i * shown_steps / count;
    if (!on_grid && std::int64_t(i) + 1 != r.first_difference) continue;
    twin_step const& s = r.steps[i];
    std::printf("%6zu %12.6f %12.6f %12.2e %12.2e %12.2e\n", i + 1, s.loss[0], s.loss[1], s.loss[1] - s.loss[0],
                s.gradient, s.weights);
  }
  if (r.first_difference == 0) std::printf("no bit differs\n");
  else std::printf("first difference: step %lld\n", static_cast<long long>(r.first_difference));
  std::printf("largest difference of a loss: %.2e\n", r.largest_loss_difference());
  std::printf("held-out loss: %.6f before; %.6f and %.6f after, gap %.2e\n", r.held_out_before[0], r.held_out[0],
              r.held_out[1], r.held_out[1] - r.held_out[0]);
  std::printf("change of the weights, |dW| / |W|: %.4e and %.4e; apart by %.2e of it, cosine %.9f\n", r.change[0],
              r.change[1], r.change_apart, r.cosine);
  std::printf("drift: %s\n", name_of(r.verdict()));
}

std::string to_json(twin_report const& r, std::string const& first, std::string const& second) {
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  for (twin_step const& s : r.steps)
    steps.push_back({{"loss", s.loss}, {"gradient", s.gradient}, {"weights", s.weights}});
  return nlohmann::ordered_json{{"first", nlohmann::ordered_json::parse(first)},
                                {"second", nlohmann::ordered_json::parse(second)},
                                {"first_difference", r.first_difference},
                                {"held_out_before", r.held_out_before},
                                {"held_out", r.held_out},
                                {"change", r.change},
                                {"change_apart", r.change_apart},
                                {"cosine", r.cosine},
                                {"drift", name_of(r.verdict())},
                                {"steps", steps}}
      .dump(2);
}

template <class Options>
void add_comparing(CLI::App& app, twin_options<Options>& o) {
  app.add_option("--second", o.second, "options that the second run has instead, in one argument")
      ->capture_default_str()
      ->group("Twin");
  app.add_option("--report", o.report, "JSON file to write every step to. Default: none is written")->group("Twin");
}

/// The run's options with `changed` instead of what it set; shared: options that decide data, order or number of steps.
template <class Options>
Options with_changes(Options second, Options const& changed, std::initializer_list<char const*> shared) {
  if (!changed.data.empty()) throw bad_option("--second: both runs have the same --data");
  for_each_field(
      [&](field const& f, auto& value, auto const& instead) {
        if (!instead) return;
        for (char const* const same : shared)
          if (f.name == std::string(same)) throw bad_option("--second: both runs have the same --" + std::string(same));
        value = instead;
      },
      second, changed);
  return second;
}

std::vector<std::string> words_of(std::string const& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

/// Trains both and says how far they are apart.
template <class Trainer, class Options, class Settings, class Data>
int compare(twin_options<Options> const& o, Settings const& settings, Settings const& other, Data const& data) {
  twin_run<Settings, Trainer, Data> first(settings, data), second(other, data);
  require_twins(first.trainer, second.trainer);
  std::printf("%s", describe(settings).c_str());
  first.describe("first");
  second.describe("second");
  twin_report const r = compare_twins(first.trainer, second.trainer, settings.steps);
  print(r);
  if (!o.report.empty())
    write_report(o.report, settings.min_free_gb, to_json(r, to_json(settings), to_json(other)) + "\n");
  return 0;
}

}  // namespace

void add_twin_options(CLI::App& app, twin_options<lm_options>& o) {
  add_lm_options(app, o.run);
  add_comparing(app, o);
}
void add_twin_options(CLI::App& app, twin_options<dit_options>& o) {
  add_dit_options(app, o.run);
  add_comparing(app, o);
}

lm_options second_of(twin_options<lm_options> const& o) {
  return with_changes(o.run, parse_lm(words_of(o.second)),
                      {"documents", "max-len", "validation", "seed", "context", "steps"});
}
dit_options second_of(twin_options<dit_options> const& o) {
  return with_changes(o.run, parse_dit(words_of(o.second)),
                      {"bands", "validation", "seed", "steps", "patch", "crop", "crop-min", "crop-max", "prompt",
                       "caption-dropout", "time-mean", "time-deviation", "ablate"});
}

int run_twin(twin_options<lm_options> const& o) {
  lm_settings const settings = resolve(o.run), other = resolve(second_of(o));
  return compare<lm_trainer>(o, settings, other, load_text_of(settings));
}

/// Both have the crops of the first, whose bound may depend on its attention.
int run_twin(twin_options<dit_options> const& o) {
  dit_settings settings = resolve(o.run), other = resolve(second_of(o));
  recordings const data = load_recordings_of(settings);
  settings = with_data(settings, data);
  other.crop_min = settings.crop_min, other.crop_max = settings.crop_max;
  return compare<dit_trainer>(o, settings, with_data(other, data), data);
}

}  // namespace trainer
