// What a run leaves in its directory:
//
//   checkpoint-000360.safetensors   after step 360: weights under their names, the optimiser's averages, the log so
//   far;
//                                   metadata: format, step, position, options, data
//   log.jsonl                       a line a step, and a line a validation
//   loss.svg, summary.json          the curve and the final figures
//
// and what the command makes of the final weights (model_files.hpp; dit_command.hpp).
#pragma once

#include "run_directory.hpp"
#include "trainee.hpp"

namespace trainer {

/// What a checkpoint says besides the weights.
struct checkpoint_header {
  std::int64_t step = 0;
  std::string options;  ///< to_json of the settings
  std::string data;     ///< digest of the data, hexadecimal
  std::string log;      ///< log.jsonl up to this step
};

void save_checkpoint(run_directory const& directory, checkpoint_header const& header, trainee const& run);

/// The header alone, before there is a trainer to load into, of a checkpoint of `command`. Throws bad-checkpoint,
/// naming the file.
checkpoint_header read_header(std::filesystem::path const& path, std::string const& command);
/// Weights and averages. Throws bad-checkpoint, naming the file and the tensor that does not fit.
void load_weights(std::filesystem::path const& path, trainee& run);

/// The trained weights, each under its name, and the run's constants.
safetensors::file weights_of(trainee const& run);

}  // namespace trainer
