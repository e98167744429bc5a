#include "fit_command.hpp"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base_checkpoint.hpp"
#include "dit_command.hpp"
#include "dit_fit.hpp"
#include "error.hpp"
#include "lm_fit.hpp"
#include "memory_terms.hpp"
#include "option_checks.hpp"
#include "plan_budget.hpp"
#include "run_directory.hpp"

namespace trainer {
namespace {

/// A word as a shell reads it back.
std::string quoted(std::string const& word) {
  if (!word.empty() && word.find_first_of(" \t\n'\"\\$`*?;&|<>()#~") == std::string::npos) return word;
  std::string text = "'";
  for (char const c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

/// What a command calls the length that is searched.
struct fit_words {
  char const *command, *length;
};
constexpr fit_words words_of(lm_settings const&) { return {"lm", "context"}; }
constexpr fit_words words_of(dit_settings const&) { return {"dit", "crop"}; }

std::int64_t length_of(lm_settings const& s) { return s.context; }
std::int64_t length_of(dit_settings const& s) { return s.crop_max; }
void take_length(lm_options& o, lm_settings const& found) { o.context = found.context; }
void take_length(dit_options& o, dit_settings const& found) {
  if (!o.crop) o.crop_max = found.crop_max;
  if (o.crop_min) o.crop_min = found.crop_min;
}

/// The command with the settings that the fit found, as it is typed.
template <class Options, class Settings>
std::string command_of(Options options, Settings const& found, std::int64_t layers) {
  take_length(options, found);
  options.batch = found.batch;
  options.accumulate = found.accumulate;
  options.ckpt = found.ckpt;
  if (found.layers != layers) options.layers = found.layers;
  std::string text = std::string("lanewise-train ") + words_of(found).command;
  for (std::string const& word : arguments_of(options)) text += " " + quoted(word);
  return text;
}

std::size_t available_of(std::size_t budget, device const& on) {
  std::size_t const reserve = on.budget().reserve;
  return budget > reserve ? budget - reserve : 0;
}

template <class Settings>
void print_row(std::size_t budget, fit_result<Settings> const& r) {
  Settings const& s = r.settings;
  std::printf("%10.0f %9lld %6lld %11lld %6lld %7lld %12.1f  %s\n", double(budget) / (1 << 20),
              static_cast<long long>(length_of(s)), static_cast<long long>(s.batch),
              static_cast<long long>(s.accumulate), static_cast<long long>(s.ckpt), static_cast<long long>(s.layers),
              double(r.plan.peak()) / (1 << 20), r.fits ? "fits" : "refused");
}

void print_terms(lanewise::arena_plan const& plan) {
  std::printf("%-24s %8s %12s\n", "when the plan is fullest", "tensors", "MiB");
  for (memory_term const& t : terms_of(plan))
    std::printf("%-24s %8zu %12.3f\n", t.name.c_str(), t.tensors, double(t.bytes) / (1 << 20));
  std::printf("%-24s %8s %12.3f\n", "TOTAL", "", double(plan.peak()) / (1 << 20));
}

template <class Settings>
nlohmann::ordered_json json_of(std::size_t budget, std::size_t available, fit_result<Settings> const& r) {
  nlohmann::ordered_json terms;
  for (memory_term const& t : terms_of(r.plan)) terms[t.name] = t.bytes;
  return {{"budget", budget},
          {"available", available},
          {"fits", r.fits},
          {words_of(r.settings).length, length_of(r.settings)},
          {"batch", r.settings.batch},
          {"accumulate", r.settings.accumulate},
          {"ckpt", r.settings.ckpt},
          {"layers", r.settings.layers},
          {"plan_bytes", r.plan.peak()},
          {"terms", terms}};
}

template <class Options>
void add_search(CLI::App& app, fit_options<Options>& o, char const* longest, char const* longest_help) {
  app.add_option(
         "--vram-budget-mb", o.vram_budget_mb,
         "memory of the card, 2^20 bytes, of which the device's reserve is left alone. Default: cards of 8, 12, "
         "16, 24 and 32 GiB. 0: unset")
      ->check(CLI::NonNegativeNumber)
      ->group("Fit");
  app.add_option(longest, o.longest, longest_help)->check(CLI::NonNegativeNumber)->check(beyond_64_bits)->group("Fit");
  app.add_option("--layers-min", o.layers_min,
                 "fewest layers that are of use, where all of them do not fit. Default: all of them. 0: unset")
      ->check(CLI::NonNegativeNumber)
      ->check(beyond_64_bits)
      ->group("Fit");
  app.add_option("--report", o.report, "JSON file to write plans and terms to. Default: none is written")->group("Fit");
}

/// A row for every card; find(available bytes) is the command's search.
template <class Options, class Settings, class Find>
int fit_cards(fit_options<Options> const& o, Settings const& s, device const& on, Find const& find) {
  require(!std::isnan(o.vram_budget_mb), "--vram-budget-mb: nan is no number");
  std::vector<std::size_t> budgets;
  if (o.vram_budget_mb > 0) budgets.push_back(bytes_of_mebibytes(o.vram_budget_mb));
  else
    for (int gibibytes : card_sizes) budgets.push_back(std::size_t(gibibytes) << 30);

  std::printf("%sdevice: %s, reserve %s\n", describe(s).c_str(), on.describe().c_str(),
              mebibytes(on.budget().reserve).c_str());
  std::printf("%10s %9s %6s %11s %6s %7s %12s\n", "card, MiB", words_of(s).length, "batch", "accumulate", "ckpt",
              "layers", "plan, MiB");
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  std::string refused;
  for (std::size_t const budget : budgets) {
    std::size_t const available = available_of(budget, on);
    fit_result<Settings> const r = find(available);
    print_row(budget, r);
    if (budgets.size() == 1) print_terms(r.plan);
    std::printf("  %s\n", (r.fits ? command_of(o.run, r.settings, s.layers) : r.refusal).c_str());
    report.push_back(json_of(budget, available, r));
    if (!r.fits)
      refused = "est " + mebibytes(r.plan.peak()) + ", free " + mebibytes(budget) + ", reserve " +
                mebibytes(budget - available) + "; " + r.refusal;
  }
  if (!o.report.empty()) write_report(o.report, s.min_free_gb, report.dump(2) + "\n");
  if (budgets.size() == 1 && !refused.empty()) throw out_of_memory(refused);
  return 0;
}

/// The fewest layers that a search may come down to.
template <class Options, class Settings>
std::int64_t layers_of_use(fit_options<Options> const& o, Settings const& s) {
  bool const is_open = o.layers_min > 0 && !s.from_user.contains("layers");
  return is_open ? std::min(o.layers_min, s.layers) : s.layers;
}

}  // namespace

void add_fit_options(CLI::App& app, fit_options<lm_options>& o) {
  add_lm_options(app, o.run);
  add_search(app, o, "--context-max",
             "longest window that is of use. Default: the positions of --base, or else --context. 0: unset");
}
void add_fit_options(CLI::App& app, fit_options<dit_options>& o) {
  add_dit_options(app, o.run);
  add_search(app, o, "--longest",
             "longest crop that is of use, in frames, also beyond the recordings. Default: the longest stretch of the "
             "recordings, up to the preset's bound. 0: unset");
}

int run_fit(fit_options<lm_options> const& o) {
  lm_settings const s = resolve(o.run);
  std::unique_ptr<device> const on = device_of(s);
  std::int64_t const useful = s.base.empty() ? s.context : base_checkpoint(s.base).positions();
  std::int64_t const longest = o.longest > 0 ? o.longest : useful;
  return fit_cards(o, s, *on,
                   [&](std::size_t available) { return fit_lm(s, *on, available, longest, layers_of_use(o, s)); });
}

int run_fit(fit_options<dit_options> const& o) {
  dit_settings s = resolve(o.run);
  recordings const data = load_recordings_of(s);
  s = with_data(s, data);
  std::unique_ptr<device> const on = device_of(s);
  std::int64_t const longest = o.longest > 0 ? o.longest : s.crop_max;
  return fit_cards(
      o, s, *on, [&](std::size_t available) { return fit_dit(s, data, *on, available, longest, layers_of_use(o, s)); });
}

}  // namespace trainer
