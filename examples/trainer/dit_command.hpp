// `lanewise-train dit`: trains the diffusion transformer on recordings, from the options to the last line. A finished
// run leaves, beside what checkpoint.hpp lists,
//
//   model.safetensors   the final weights, and latents.mean and latents.deviation, which turn latents into sound
//   sample.wav          what the model makes of noise, 16 bits
#pragma once

#include "audio/recordings.hpp"
#include "dit_options.hpp"

namespace trainer {

/// Validation loss has to end below this share of the best per-channel linear predictor's: what a model cannot do that
/// looks at one number of x_t at a time.
inline constexpr double learned_share = 0.9;

/// The recordings that the settings name; says on stdout what they are. Throws no-data, no-samples.
recordings load_recordings_of(dit_settings const& settings);
/// The settings with what follows from the data.
dit_settings with_data(dit_settings settings, recordings const& data);

/// Runs to the end, or to a signal. Returns the exit code; errors come as named_error.
int run_dit(dit_options options);

}  // namespace trainer
