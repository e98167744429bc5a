// `lanewise-train twin lm`: one run under two settings, step by step, and how far they drift apart.
#pragma once

#include <string>

#include "options.hpp"

namespace trainer {

struct twin_options {
  lm_options run;
  std::string second = "--attn exact";  ///< options that the second run has instead
  std::string report;                   ///< JSON file; empty: none
};

void add_twin_options(CLI::App& app, twin_options& options);

/// The options of the second run. Throws bad-option where they would give it other data.
lm_options second_of(twin_options const& options);

/// Returns the exit code. Throws named_error.
int twin_lm(twin_options const& options);

}  // namespace trainer
