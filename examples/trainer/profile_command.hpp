// `lanewise-train profile lm` and `profile dit`: what a training step's time goes to, op by op and attention site by
// attention site, on the device of the settings. It trains on the real data and writes nothing but the report that is
// asked for.
#pragma once

#include <cstdint>
#include <string>

#include "dit_options.hpp"
#include "options.hpp"

namespace trainer {

template <class Options>
struct profile_options {
  Options run;
  std::int64_t repeat = 10;  ///< steps that are timed whole, after two that are not, then steps whose ops are
  std::string report;        ///< JSON file; empty: none
};

void add_profile_options(CLI::App& app, profile_options<lm_options>& options);
void add_profile_options(CLI::App& app, profile_options<dit_options>& options);

/// Returns the exit code. Throws named_error.
int run_profile(profile_options<lm_options> const& options);
int run_profile(profile_options<dit_options> const& options);

}  // namespace trainer
