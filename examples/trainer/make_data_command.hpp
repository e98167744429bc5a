// `lanewise-train make-data`: writes a folder of songs with captions, the same bytes for the same seed everywhere.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace trainer {

struct make_data_options {
  std::string preset = "albumF";
  std::int64_t seed = 42;
  std::string out;  ///< empty: the preset's name
  double min_free_gb = 0.1;
};

void add_make_data_options(CLI::App& app, make_data_options& options);

/// Writes song01.wav, song01.txt and so on. Returns the exit code. Throws named_error.
int run_make_data(make_data_options const& options);

}  // namespace trainer
