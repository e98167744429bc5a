// The loss curve of a run, for the terminal and as SVG: training loss, validation loss, and a yardstick's as a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

struct curve_point {
  std::int64_t step;
  double loss;
};

/// What the numbers are.
struct curve_words {
  std::string unit, yardstick;  ///< such as "nats per token", "add-one bigram"
};

struct loss_curve {
  std::vector<curve_point> training, validation;
  double yardstick = 0;
  curve_words words;

  /// Reads the lines of log.jsonl.
  static loss_curve from_log(std::string const& log, double yardstick = 0, curve_words const& words = {});

  /// width x height characters of plot, with axes; `plain` keeps to ASCII.
  std::string terminal(int width, int height, bool plain) const;
  /// A self-contained picture of 720 x 400.
  std::string svg(std::string const& title) const;

 private:
  struct range {
    double low, high;
    std::int64_t steps;
  };
  range bounds() const;
  std::vector<curve_point> smoothed(std::size_t points) const;
};

}  // namespace trainer
