// `lanewise-train fit lm` and `fit dit`: which window or crop, batch and checkpoint segments a card has room for, from
// plans alone; nothing is trained and nothing but the plans' tables is allocated.
#pragma once

#include <cstdint>
#include <string>

#include "dit_options.hpp"
#include "options.hpp"

namespace trainer {

/// Memory of the cards that are looked at where no budget is given, in 2^30 bytes.
inline constexpr int card_sizes[] = {8, 12, 16, 24, 32};

template <class Options>
struct fit_options {
  Options run;
  double vram_budget_mb = 0;    ///< of one card, 2^20 bytes; 0: every one of card_sizes
  std::int64_t longest = 0;     ///< window or crop of use; 0: as long as the base, the settings or the data allow
  std::int64_t layers_min = 0;  ///< fewest layers of use; 0: all of them
  std::string report;           ///< JSON file; empty: none
};

void add_fit_options(CLI::App& app, fit_options<lm_options>& options);
void add_fit_options(CLI::App& app, fit_options<dit_options>& options);

/// Returns the exit code. Throws named_error; out-of-memory where the one budget that is given holds nothing.
int run_fit(fit_options<lm_options> const& options);
int run_fit(fit_options<dit_options> const& options);

}  // namespace trainer
