// `lanewise-train fit lm`: which batch, window and checkpoint segments a card has room for, from plans alone; nothing
// is trained and nothing but the plans' tables is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "options.hpp"

namespace trainer {

/// Memory of the cards that are looked at where no budget is given, in 2^30 bytes.
inline constexpr int card_sizes[] = {8, 12, 16, 24, 32};

struct fit_options {
  lm_options run;
  double vram_budget_mb = 0;     ///< of one card, 2^20 bytes; 0: every one of card_sizes
  std::int64_t context_max = 0;  ///< longest window of use; 0: the base's positions, else --context
  std::string report;            ///< JSON file; empty: none
};

void add_fit_options(CLI::App& app, fit_options& options);

/// Returns the exit code. Throws named_error; out-of-memory where the one budget that is given holds nothing.
int fit_lm_command(fit_options const& options);

}  // namespace trainer
