// `lanewise-train dit`: trains the diffusion transformer on recordings, from the options to the last line. A finished
// run leaves, beside what checkpoint.hpp lists,
//
//   model.safetensors   the final weights, and latents.mean and latents.deviation, which turn latents into sound
//   sample.wav          what the model makes of noise, 16 bits
#pragma once

#include "dit_options.hpp"

namespace trainer {

/// Validation loss has to end below this share of the best per-channel linear predictor's: what a model cannot do that
/// looks at one number of x_t at a time.
inline constexpr double learned_share = 0.9;

/// Runs to the end, or to a signal. Returns the exit code; errors come as named_error.
int run_dit(dit_options options);

}  // namespace trainer
