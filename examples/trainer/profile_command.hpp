// `lanewise-train profile lm`: what a training step's time goes to, op by op and attention site by attention site, on
// the device of the settings. It trains on the real data and writes nothing but the report that is asked for.
#pragma once

#include <cstdint>
#include <string>

#include "options.hpp"

namespace trainer {

struct profile_options {
  lm_options run;
  std::int64_t repeat = 10;  ///< steps that are measured, after two that are not
  std::string report;        ///< JSON file; empty: none
};

void add_profile_options(CLI::App& app, profile_options& options);

/// Returns the exit code. Throws named_error.
int profile_lm(profile_options const& options);

}  // namespace trainer
