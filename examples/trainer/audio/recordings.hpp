// Recordings as a diffusion model reads them: WAV files with captions become frames of latents, the coefficients of the
// lapped transform, normalised per channel,
//
//   latent = (coefficient - mean) / deviation        both of the channel, over the frames to train on
//
// and each recording is split: a stretch of it, at a place that the seed chooses, is held out for validation. Frames
// next to it are left out, since neighbouring windows of the transform share samples.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trainer {

struct recordings_request {
  std::vector<std::filesystem::path> paths;  ///< WAV files, and directories whose .wav files are taken; empty: default
  std::int64_t bands = 64;                   ///< channels of a latent
  std::int64_t patch = 1;                    ///< stretches are cut to a multiple of so many frames
  double validation_share = 0.2;
  std::uint64_t seed = 0;
};

struct recording {
  std::string name;            ///< of the file, without its extension
  std::string caption;         ///< the text of NAME.txt beside it; without that file NAME, its underscores as spaces
  std::vector<float> latents;  ///< [frames, bands]
};

/// Frames begin ... begin + frames - 1 of a recording.
struct stretch {
  std::size_t recording;
  std::int64_t begin, frames;
};

struct recordings {
  std::int64_t rate = 0, bands = 0;  ///< samples per second; a frame is `bands` samples long
  std::vector<recording> all;
  std::vector<stretch> train, validation;
  std::vector<float> mean, deviation;  ///< [bands]

  std::int64_t frames_of(std::vector<stretch> const& part) const;
  /// The first number of a stretch's frame.
  float const* frame(stretch const& s, std::int64_t i) const {
    return all[s.recording].latents.data() + (s.begin + i) * bands;
  }
  /// Latents [frames, bands] as samples at `rate`, full scale -1 ... 1.
  std::vector<float> sound_of(std::vector<float> const& latents) const;
};

/// The directory of the default recordings, and the Debian package that brings them.
inline constexpr char const* default_recordings = "/usr/share/sounds/alsa";
inline constexpr char const* recordings_package = "alsa-utils";

/// The WAV files of a directory, sorted. Throws no-data, naming the package to install.
std::vector<std::filesystem::path> default_recording_files(std::filesystem::path const& directory = default_recordings);

/// Reads, transforms, splits and normalises; channels are mixed down. The same files and seed give the same bits.
/// Throws no-data when a path is missing; bad-data, naming the file, when one is no WAV file, cut short, of another
/// rate or has an empty caption; no-samples when nothing is left to train on or to validate with.
recordings load_recordings(recordings_request const& request);

/// A digest of captions, split and latents, to tell whether a resumed run reads the same data.
std::uint64_t digest(recordings const& data);

}  // namespace trainer
