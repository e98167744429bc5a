// Sound files and the transform between samples and latents.
#include <numbers>

#include "audio/lapped_transform.hpp"
#include "audio/wav.hpp"
#include "support.hpp"

using namespace trainer;
using test::has;

namespace {

std::string error_of(std::filesystem::path const& path) {
  try {
    read_wav(path);
  } catch (std::runtime_error const& e) {
    return e.what();
  }
  return "no error";
}

/// Little-endian bytes of numbers, each with its width.
std::string bytes_of(std::vector<std::pair<std::uint32_t, int>> const& numbers) {
  std::string text;
  for (auto [value, width] : numbers)
    for (int i = 0; i < width; ++i) text += char(value >> (8 * i) & 0xff);
  return text;
}

}  // namespace

TEST_CASE("wav: what is written is read, to half a step of the format") {
  test::scratch dir;
  for (std::int64_t const channels : {1, 2}) {
    sound s{44100, channels, test::normal<float>(501 * std::size_t(channels), 1, 0.2)};
    s.samples[0] = 1.5f;  // clips
    s.samples[channels] = -1.5f;
    struct row {
      sample_format format;
      double step;
    };
    for (row const& r :
         {row{sample_format::pcm16, 0x1p-15}, {sample_format::pcm24, 0x1p-23}, {sample_format::f32, 0}}) {
      sound const back = read_wav(dir.write("a.wav", wav_bytes(s, r.format)));
      CHECK(back.rate == 44100);
      CHECK(back.channels == channels);
      REQUIRE(back.samples.size() == s.samples.size());
      for (std::size_t i = 0; i < s.samples.size(); ++i) {
        double const wanted = r.step == 0 ? double(s.samples[i]) : std::clamp(double(s.samples[i]), -1.0, 1 - r.step);
        REQUIRE(std::abs(double(back.samples[i]) - wanted) <= r.step / 2 + 1e-9);
      }
    }
  }
}

TEST_CASE("wav: a file made by hand, with an extensible header and a chunk of odd size before its samples") {
  test::scratch dir;
  std::string const file =
      "RIFF" + bytes_of({{0, 4}}) + "WAVELIST" + bytes_of({{3, 4}}) + "abc" + '\0' + "fmt " +
      bytes_of(
          {{40, 4}, {0xfffe, 2}, {2, 2}, {8000, 4}, {48000, 4}, {6, 2}, {24, 2}, {22, 2}, {24, 2}, {3, 4}, {1, 2}}) +
      std::string(14, 'g') + "data" + bytes_of({{12, 4}, {0x400000, 3}, {0x800000, 3}, {0xffffff, 3}, {0, 3}});
  sound const s = read_wav(dir.write("a.wav", file));
  CHECK(s.rate == 8000);
  CHECK(s.channels == 2);
  CHECK(s.samples == std::vector<float>{0.5f, -1.f, -0x1p-23f, 0.f});
  sound const m = mono(s);
  CHECK(m.channels == 1);
  CHECK(m.samples == std::vector<float>{-0.25f, -0x1p-24f});
}

TEST_CASE("wav: what cannot be read is refused with its path and the numbers") {
  test::scratch dir;
  std::string const good = wav_bytes({48000, 2, {0, 0, 0, 0}}, sample_format::pcm16);
  auto const refused = [&](std::string const& file) {
    std::filesystem::path const path = dir.write("odd.wav", file);
    std::string const error = error_of(path);
    CHECK(has(error, path.string() + ": "));
    return error;
  };
  CHECK(has(error_of(dir.path / "none.wav"), "cannot be opened"));
  CHECK(has(refused(""), "is no WAV file"));
  CHECK(has(refused("RIFX" + good.substr(4)), "is no WAV file"));
  CHECK(has(refused(good.substr(0, good.size() - 3)), "is cut short: its chunk 'data' has 8 bytes, 5 are there"));
  CHECK(has(refused(good.substr(0, 30)), "is cut short: its chunk 'fmt ' has 16 bytes, 10 are there"));
  CHECK(has(refused(good.substr(0, 12)), "has no format chunk"));
  CHECK(has(refused(good.substr(0, 36)), "has no samples"));
  CHECK(has(refused(good.substr(0, 12) + good.substr(36)), "its samples come before their format"));
  std::string file = good;
  file[34] = 8;
  CHECK(has(refused(file), "format 1 with 8 bits"));
  file = good;
  file[20] = 6;
  CHECK(has(refused(file), "format 6 with 16 bits"));
  file = good;
  file[32] = 3;
  CHECK(has(refused(file), "frames of 3 bytes do not hold 2 samples of 16 bits"));
  file = good;
  file[40] = 6;
  CHECK(has(refused(file), "its 6 bytes of samples are no whole number of frames of 4"));
  file = good;
  file[22] = 0;
  CHECK(has(refused(file), "no channels"));
  for (float const x : {NAN, -INFINITY, 1e30f})  // the squares of the last are beyond f32
    CHECK(has(refused(wav_bytes({48000, 1, {0, x}}, sample_format::f32)), "which is no sound"));
}

TEST_CASE("lapped transform: the waveform comes back, and the energy is kept") {
  for (auto [bands, count] : {std::pair{4, 1}, {4, 3}, {4, 4}, {16, 1000}, {128, 5000}}) {
    CAPTURE(bands);
    CAPTURE(count);
    lapped_transform const transform(bands);
    std::vector<float> const x = test::normal<float>(std::size_t(count), 1);
    std::vector<float> const c = transform.forward(x);
    REQUIRE(std::int64_t(c.size()) == transform.frames(count) * bands);
    std::vector<float> back = transform.inverse(c);
    REQUIRE(back.size() >= x.size());
    REQUIRE(back.size() < x.size() + std::size_t(bands));
    for (std::size_t i = x.size(); i < back.size(); ++i) CHECK(std::abs(back[i]) < 1e-6f);
    back.resize(x.size());
    // Coefficients and basis are rounded to 2^-24 each, and some 2 bands random errors meet in a sample.
    CHECK(test::relative_error(back, std::vector<double>(x.begin(), x.end())) < 5e-7);
    double in = 0, out = 0;
    for (float v : x) in += double(v) * double(v);
    for (float v : c) out += double(v) * double(v);
    CHECK(out == doctest::Approx(in).epsilon(1e-6));
  }
}

TEST_CASE("lapped transform: a tone of a band's middle frequency lies in that band") {
  constexpr int bands = 32, band = 9, frames = 40;
  std::vector<float> x;
  for (int i = 0; i < bands * frames; ++i) x.push_back(float(std::cos(std::numbers::pi / bands * i * (band + 0.5))));
  std::vector<float> const c = lapped_transform(bands).forward(x);
  double all = 0, near = 0;
  for (int t = 2; t < frames - 2; ++t)
    for (int k = 0; k < bands; ++k) {
      double const square = double(c[std::size_t(t * bands + k)]) * double(c[std::size_t(t * bands + k)]);
      all += square;
      if (std::abs(k - band) <= 1) near += square;
    }
  CHECK(near > 0.98 * all);
}
