// WAV files: PCM of 16 or 24 bits and f32, any number of channels, also with the extensible header that recorders write
// (Microsoft, "Multiple channel audio data and WAVE files", 2001). Full scale is -1 ... 1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

struct sound {
  std::int64_t rate = 48000;  ///< frames per second
  std::int64_t channels = 1;
  std::vector<float> samples;  ///< [frames, channels]
  std::int64_t frames() const { return std::int64_t(samples.size()) / channels; }
};

enum class sample_format { pcm16, pcm24, f32 };

/// Throws std::runtime_error, "PATH: what is wrong, with the numbers", where the file is no WAV file, is cut short or
/// holds samples of another kind.
sound read_wav(std::filesystem::path const& path);

/// The bytes of a WAV file. PCM rounds to nearest and clips at full scale.
std::string wav_bytes(sound const& s, sample_format format);

/// The mean of the channels.
sound mono(sound const& s);

}  // namespace trainer
