// The modified discrete cosine transform with the sine window (Princen, Johnson, Bradley 1987): a waveform becomes
// frames of `bands` coefficients, half-overlapping windows of 2 bands samples each, and comes back exactly but for
// rounding. Scaled as here it is orthonormal: the sum of squares is that of the samples.
//
//   c[t, k] = sqrt(2 / N) sum_n w[n] x[(t - 1) N + n] cos(pi / N (n + 1/2 + N/2) (k + 1/2)),  w[n] = sin(pi (n + 1/2) /
//   2N) x[(t - 1) N + n] = sum over the two frames that hold it of w[n] sqrt(2 / N) sum_k c[t, k] cos(...)
//
// Outside the sound x is 0, so m samples make ceil(m / N) + 1 frames.
#pragma once

#include <cstdint>
#include <vector>

namespace trainer {

class lapped_transform {
 public:
  /// bands: coefficients of a frame, an even number.
  explicit lapped_transform(std::int64_t bands);

  std::int64_t bands() const { return bands_; }
  std::int64_t frames(std::int64_t samples) const { return (samples + bands_ - 1) / bands_ + 1; }

  /// [frames(samples.size()), bands].
  std::vector<float> forward(std::vector<float> const& samples) const;
  /// coefficients [frames, bands]; returns (frames - 1) bands samples, of which those past the sound's end are 0 for
  /// what `forward` made.
  std::vector<float> inverse(std::vector<float> const& coefficients) const;

 private:
  std::int64_t bands_;
  std::vector<float> basis_;  ///< [bands, 2 bands], windowed
};

}  // namespace trainer
