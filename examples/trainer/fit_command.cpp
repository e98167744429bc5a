#include "fit_command.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base_checkpoint.hpp"
#include "error.hpp"
#include "lm_fit.hpp"
#include "memory_terms.hpp"
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

/// The `lm` that the fit found, as it is typed.
std::string command_of(lm_options options, lm_settings const& found) {
  options.context = found.context;
  options.batch = found.batch;
  options.accumulate = found.accumulate;
  options.ckpt = found.ckpt;
  std::string text = "lanewise-train lm";
  for (std::string const& word : arguments_of(options)) text += " " + quoted(word);
  return text;
}

std::size_t available_of(std::size_t budget, device const& on) {
  std::size_t const reserve = on.budget().reserve;
  return budget > reserve ? budget - reserve : 0;
}

void print_row(std::size_t budget, lm_fit const& r) {
  lm_settings const& s = r.settings;
  std::printf("%10.0f %9lld %6lld %11lld %6lld %12.1f  %s\n", double(budget) / (1 << 20),
              static_cast<long long>(s.context), static_cast<long long>(s.batch), static_cast<long long>(s.accumulate),
              static_cast<long long>(s.ckpt), double(r.plan.peak()) / (1 << 20), r.fits ? "fits" : "refused");
}

void print_terms(lanewise::arena_plan const& plan) {
  std::printf("%-24s %8s %12s\n", "when the plan is fullest", "tensors", "MiB");
  for (memory_term const& t : terms_of(plan))
    std::printf("%-24s %8zu %12.3f\n", t.name.c_str(), t.tensors, double(t.bytes) / (1 << 20));
  std::printf("%-24s %8s %12.3f\n", "TOTAL", "", double(plan.peak()) / (1 << 20));
}

nlohmann::ordered_json json_of(std::size_t budget, std::size_t available, lm_fit const& r) {
  nlohmann::ordered_json terms;
  for (memory_term const& t : terms_of(r.plan)) terms[t.name] = t.bytes;
  return {{"budget", budget},
          {"available", available},
          {"fits", r.fits},
          {"context", r.settings.context},
          {"batch", r.settings.batch},
          {"accumulate", r.settings.accumulate},
          {"ckpt", r.settings.ckpt},
          {"plan_bytes", r.plan.peak()},
          {"terms", terms}};
}

}  // namespace

void add_fit_options(CLI::App& app, fit_options& o) {
  add_lm_options(app, o.run);
  app.add_option(
         "--vram-budget-mb", o.vram_budget_mb,
         "memory of the card, 2^20 bytes, of which the device's reserve is left alone. Default: cards of 8, 12, "
         "16, 24 and 32 GiB. 0: unset")
      ->check(CLI::NonNegativeNumber)
      ->group("Fit");
  app.add_option("--context-max", o.context_max,
                 "longest window that is of use. Default: the positions of --base, or else --context. 0: unset")
      ->check(CLI::NonNegativeNumber)
      ->group("Fit");
  app.add_option("--report", o.report, "JSON file to write plans and terms to. Default: none is written")->group("Fit");
}

int fit_lm_command(fit_options const& o) {
  lm_settings const s = resolve(o.run);
  std::unique_ptr<device> const on = device_of(s);
  std::int64_t const useful = s.base.empty() ? s.context : base_checkpoint(s.base).positions();
  std::int64_t const longest = o.context_max > 0 ? o.context_max : useful;
  std::vector<std::size_t> budgets;
  if (o.vram_budget_mb > 0) budgets.push_back(std::size_t(o.vram_budget_mb * (1 << 20)));
  else
    for (int gibibytes : card_sizes) budgets.push_back(std::size_t(gibibytes) << 30);

  std::printf("%sdevice: %s, reserve %s\n", describe(s).c_str(), on->describe().c_str(),
              mebibytes(on->budget().reserve).c_str());
  std::printf("%10s %9s %6s %11s %6s %12s\n", "card, MiB", "context", "batch", "accumulate", "ckpt", "plan, MiB");
  nlohmann::ordered_json report = nlohmann::ordered_json::array();
  std::string refused;
  for (std::size_t const budget : budgets) {
    std::size_t const available = available_of(budget, *on);
    lm_fit const r = fit_lm(s, *on, available, longest);
    print_row(budget, r);
    if (budgets.size() == 1) print_terms(r.plan);
    std::printf("  %s\n", (r.fits ? command_of(o.run, r.settings) : r.refusal).c_str());
    report.push_back(json_of(budget, available, r));
    if (!r.fits)
      refused = "est " + mebibytes(r.plan.peak()) + ", free " + mebibytes(budget) + ", reserve " +
                mebibytes(budget - available) + "; " + r.refusal;
  }
  if (!o.report.empty()) write_report(o.report, s.min_free_gb, report.dump(2) + "\n");
  if (budgets.size() == 1 && !refused.empty()) throw out_of_memory(refused);
  return 0;
}

}  // namespace trainer
