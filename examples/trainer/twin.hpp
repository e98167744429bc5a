// Two runs of one model from the same start, step by step side by side: what another setting, such as the exact softmax
// chain, a mirror, a device or a number of threads, does to the numbers, and what training makes of it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trainee.hpp"

namespace trainer {

struct twin_step {
  std::array<double, 2> loss;  ///< of the first run and of the second
  double gradient;             ///< |g2 - g1| / |g1|, before clipping
  double weights;              ///< |W2 - W1| / |W1 - W at the start|, after the step
};

enum class drift {
  identical,  ///< every loss, gradient and weight has the same bits
  close,      ///< held-out losses differ by at most a hundredth of what the first run took off its own
  apart
};
char const* name_of(drift d);

struct twin_report {
  std::vector<twin_step> steps;
  std::int64_t first_difference = 0;  ///< the first step with a different bit in loss, gradient or weights; 0: none
  std::array<double, 2> held_out_before{}, held_out{};  ///< mean loss over all of the held-out text
  std::array<double, 2> change{};                       ///< |W - W at the start| / |W at the start|
  double change_apart = 0;                              ///< |dW2 - dW1| / |dW1|
  double cosine = 0;                                    ///< of dW1 and dW2

  double largest_loss_difference() const;
  drift verdict() const;
};

/// Takes steps 1 ... `steps` of both, which have been started and train the same tensors.
twin_report compare_twins(trainee& first, trainee& second, std::int64_t steps);

}  // namespace trainer
