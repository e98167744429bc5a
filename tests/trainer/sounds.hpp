// Sounds that the tests of `dit` train on: each file a tone of its own whose loudness comes and goes.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <string>

#include "audio/wav.hpp"

namespace test {

/// `samples` samples at 8000 a second.
inline trainer::sound tone(double frequency, std::int64_t samples) {
  trainer::sound s{8000, 1, std::vector<float>(std::size_t(samples))};
  for (std::size_t i = 0; i < s.samples.size(); ++i) {
    double const at = double(i) / 8000, loudness = std::pow(std::sin(2 * std::numbers::pi * 3 * at), 4);
    s.samples[i] = float(0.5 * loudness * std::sin(2 * std::numbers::pi * frequency * at));
  }
  return s;
}

inline void write_wav(std::filesystem::path const& path, trainer::sound const& s) {
  std::ofstream(path, std::ios::binary) << trainer::wav_bytes(s, trainer::sample_format::f32);
}

/// low_tone.wav, high_tone.wav and middle.wav with middle.txt, half a second each.
inline void write_tones(std::filesystem::path const& directory) {
  write_wav(directory / "low_tone.wav", tone(300, 4000));
  write_wav(directory / "high_tone.wav", tone(2900, 4200));
  write_wav(directory / "middle.wav", tone(1100, 3900));
  std::ofstream(directory / "middle.txt") << "  a tone in between\n";
}

}  // namespace test
