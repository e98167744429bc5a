// `lanewise-train twin lm` and `twin dit`: one run under two settings, step by step, and how far they drift apart.
#pragma once

#include <string>

#include "dit_options.hpp"
#include "options.hpp"

namespace trainer {

template <class Options>
struct twin_options {
  Options run;
  std::string second = "--attn exact";  ///< options that the second run has instead
  std::string report;                   ///< JSON file; empty: none
};

void add_twin_options(CLI::App& app, twin_options<lm_options>& options);
void add_twin_options(CLI::App& app, twin_options<dit_options>& options);

/// The options of the second run. Throws bad-option where they would give it other data.
lm_options second_of(twin_options<lm_options> const& options);
dit_options second_of(twin_options<dit_options> const& options);

/// Returns the exit code. Throws named_error.
int run_twin(twin_options<lm_options> const& options);
int run_twin(twin_options<dit_options> const& options);

}  // namespace trainer
