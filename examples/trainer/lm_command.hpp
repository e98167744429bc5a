// `lanewise-train lm`: trains the byte language model, from the options to the last line.
#pragma once

#include "options.hpp"
#include "text_data.hpp"

namespace trainer {

/// Validation loss has to end this far below the add-one bigram's, in nats per byte: what a model cannot do that looks
/// at the current byte alone.
inline constexpr double learned_margin = 0.2;

/// The text that the settings name; says on stdout what it is. Throws no-data, no-samples.
text_data load_text_of(lm_settings const& settings);

/// Runs to the end, or to a signal. Returns the exit code; errors come as named_error.
int run_lm(lm_options options);

}  // namespace trainer
