#include "recordings.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <iterator>

#include "../error.hpp"
#include "../random.hpp"
#include "../unicode.hpp"
#include "lapped_transform.hpp"
#include "wav.hpp"

namespace trainer {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> wav_files_in(fs::path const& directory) {
  std::vector<fs::path> files;
  for (auto const& entry : fs::directory_iterator(directory)) {
    std::string extension = entry.path().extension();
    std::ranges::transform(extension, extension.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    if (entry.is_regular_file() && extension == ".wav") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::vector<fs::path> files_of(std::vector<fs::path> const& paths) {
  if (paths.empty()) return default_recording_files();
  std::vector<fs::path> files;
  for (fs::path const& path : paths) {
    if (!fs::exists(path)) throw no_data("--data: there is no " + path.string());
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> const inside = wav_files_in(path);
    if (inside.empty()) throw no_samples("--data: there is no .wav file in " + path.string());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

std::string caption_of(fs::path const& wav) {
  fs::path const text = fs::path(wav).replace_extension(".txt");
  if (!fs::exists(text)) {
    std::string name = wav.stem();
    std::ranges::replace(name, '_', ' ');
    if (!unicode::is_utf8(name)) throw bad_data(wav.string() + ": its name is no caption: it is not UTF-8");
    return name;
  }
  if (!fs::is_regular_file(text)) throw bad_data(text.string() + ": is no caption: it is no file");
  std::ifstream in(text, std::ios::binary);
  std::string caption{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  constexpr char const* blank = " \t\r\n";
  std::size_t const begin = caption.find_first_not_of(blank);
  if (!in || begin == std::string::npos)
    throw bad_data(text.string() + ": is no caption: it is " + (in ? "empty" : "unreadable"));
  if (!unicode::is_utf8(caption)) throw bad_data(text.string() + ": is no caption: it is not UTF-8");
  return caption.substr(begin, caption.find_last_not_of(blank) + 1 - begin);
}

/// Splits a recording of so many frames in three, the middle for validation.
void split(std::size_t recording, std::int64_t frames, recordings_request const& request, recordings& data) {
  std::int64_t const patch = request.patch;
  auto const whole = [&](std::int64_t n) { return std::max<std::int64_t>(0, n / patch * patch); };
  auto const add = [&](std::vector<stretch>& part, std::int64_t begin, std::int64_t n) {
    if (whole(n) > 0) part.push_back({recording, begin, whole(n)});
  };
  std::int64_t const held = whole(std::int64_t(double(frames) * request.validation_share));
  if (held == 0) return add(data.train, 0, frames);
  random_numbers draw(request.seed, stream::split, recording);
  auto const begin = std::int64_t(draw.below(std::uint64_t(frames - held + 1)));
  add(data.train, 0, begin - 1);
  add(data.validation, begin, held);
  add(data.train, begin + held + 1, frames - begin - held - 1);
}

/// Mean and deviation of each channel over the frames to train on; a channel that never changes is only moved.
void normalise(recordings& data) {
  std::int64_t const bands = data.bands;
  std::vector<double> sum(static_cast<std::size_t>(bands)), square(sum.size());
  auto const each = [&](auto const& f) {
    for (stretch const& s : data.train)
      for (std::int64_t i = 0; i < s.frames; ++i)
        for (std::int64_t c = 0; c < bands; ++c) f(std::size_t(c), double(data.frame(s, i)[c]));
  };
  auto const count = double(data.frames_of(data.train));
  each([&](std::size_t c, double x) { sum[c] += x; });
  for (double& s : sum) s /= count;
  each([&](std::size_t c, double x) { square[c] += (x - sum[c]) * (x - sum[c]); });
  data.mean.assign(sum.begin(), sum.end());
  for (double s : square) data.deviation.push_back(s > 0 ? float(std::sqrt(s / count)) : 1.f);
  for (recording& r : data.all)
    for (std::size_t i = 0; i < r.latents.size(); ++i) {
      std::size_t const c = i % std::size_t(bands);
      r.latents[i] = (r.latents[i] - data.mean[c]) / data.deviation[c];
    }
}

}  // namespace

std::int64_t recordings::frames_of(std::vector<stretch> const& part) const {
  std::int64_t frames = 0;
  for (stretch const& s : part) frames += s.frames;
  return frames;
}

std::vector<float> recordings::sound_of(std::vector<float> const& latents) const {
  std::vector<float> coefficients(latents.size());
  for (std::size_t i = 0; i < latents.size(); ++i) {
    std::size_t const c = i % std::size_t(bands);
    coefficients[i] = latents[i] * deviation[c] + mean[c];
  }
  return lapped_transform(bands).inverse(coefficients);
}

std::vector<fs::path> default_recording_files(fs::path const& directory) {
  std::vector<fs::path> const files = fs::is_directory(directory) ? wav_files_in(directory) : std::vector<fs::path>{};
  if (files.empty())
    throw no_data("the default recordings are not in " + directory.string() + "; install them with: apt install " +
                  recordings_package +
                  ", or name a folder of WAV files with --data; lanewise-train make-data writes one");
  return files;
}

recordings load_recordings(recordings_request const& request) {
  recordings data;
  data.bands = request.bands;
  lapped_transform const transform(request.bands);
  for (fs::path const& path : files_of(request.paths)) {
    sound s;
    try {
      s = mono(read_wav(path));
    } catch (std::runtime_error const& e) {
      throw bad_data(e.what());
    }
    if (data.rate == 0) data.rate = s.rate;
    if (s.rate != data.rate)
      throw bad_data(path.string() + ": has " + std::to_string(s.rate) + " samples per second, the files before it " +
                     std::to_string(data.rate) + "; convert them to one rate");
    split(data.all.size(), transform.frames(s.frames()), request, data);
    data.all.push_back({path.stem(), caption_of(path), transform.forward(s.samples)});
  }
  if (data.train.empty() || data.validation.empty())
    throw no_samples("the recordings are too short: " + std::to_string(data.frames_of(data.train)) +
                     " frames are left to train on, " + std::to_string(data.frames_of(data.validation)) +
                     " to validate with");
  normalise(data);
  return data;
}

std::uint64_t digest(recordings const& data) {
  std::uint64_t state = mix(std::uint64_t(data.rate));
  auto const add = [&](std::uint64_t x) { state = mix(state ^ x); };
  for (recording const& r : data.all) {
    for (char c : r.caption) add(std::uint8_t(c));
    for (float x : r.latents) add(std::bit_cast<std::uint32_t>(x));
  }
  for (auto const* part : {&data.train, &data.validation})
    for (stretch const& s : *part) add(s.recording * 31 + std::uint64_t(s.begin) * 7 + std::uint64_t(s.frames));
  return state;
}

}  // namespace trainer
