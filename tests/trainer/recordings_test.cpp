// Recordings: captions, the split, normalised latents and the way back, and every way in which files are refused.
#include "audio/recordings.hpp"

#include <algorithm>

#include "audio/lapped_transform.hpp"
#include "sounds.hpp"
#include "support.hpp"

using namespace trainer;
using test::error_of, test::has, test::scratch;

namespace {

recordings_request request(std::filesystem::path const& path) {
  return {.paths = {path}, .bands = 16, .patch = 2, .validation_share = 0.25, .seed = 3};
}

}  // namespace

TEST_CASE("a caption is the text beside the file, trimmed, or else the file's name with spaces") {
  scratch dir;
  test::write_tones(dir.path);
  dir.write("notes.md", "no recording");
  recordings const data = load_recordings(request(dir.path));
  REQUIRE(data.all.size() == 3);
  CHECK(data.rate == 8000);
  CHECK(data.all[0].caption == "high tone");
  CHECK(data.all[1].caption == "low tone");
  CHECK(data.all[2].caption == "a tone in between");
}

TEST_CASE("held-out frames are in no stretch to train on, nor next to one, and are the share that is asked for") {
  scratch dir;
  test::write_tones(dir.path);
  for (std::int64_t const patch : {1, 2}) {
    recordings_request ask = request(dir.path);
    ask.patch = patch;
    recordings const data = load_recordings(ask);
    REQUIRE(data.validation.size() == 3);
    for (stretch const& v : data.validation) {
      std::int64_t const frames = std::int64_t(data.all[v.recording].latents.size()) / 16;
      CHECK(std::abs(double(v.frames) - 0.25 * double(frames)) <= double(patch));
      std::int64_t trained = 0;
      for (stretch const& t : data.train) {
        if (t.recording != v.recording) continue;
        trained += t.frames;
        CHECK(t.begin >= 0);
        CHECK(t.begin + t.frames <= frames);
        CHECK(t.frames % patch == 0);
        CHECK((t.begin + t.frames < v.begin || t.begin > v.begin + v.frames));
      }
      CHECK(trained >= frames - v.frames - 2 - 2 * (patch - 1));  // two beside it, and what fills no patch
    }
  }
  recordings_request other = request(dir.path);
  other.seed = 4;
  recordings const data = load_recordings(request(dir.path));
  CHECK(load_recordings(other).validation[0].begin != data.validation[0].begin);
  CHECK(digest(load_recordings(other)) != digest(data));
  CHECK(digest(load_recordings(request(dir.path))) == digest(data));
}

TEST_CASE("latents have mean 0 and deviation 1 in every channel, over the frames to train on alone") {
  scratch dir;
  test::write_tones(dir.path);
  recordings const data = load_recordings(request(dir.path));
  auto const count = double(data.frames_of(data.train));
  for (std::int64_t c = 0; c < 16; ++c) {
    double sum = 0, square = 0;
    for (stretch const& s : data.train)
      for (std::int64_t i = 0; i < s.frames; ++i) {
        double const x = double(data.frame(s, i)[c]);
        sum += x;
        square += x * x;
      }
    CHECK(std::abs(sum / count) < 1e-5);
    CHECK(std::abs(square / count - 1) < 1e-4);
  }
}

TEST_CASE("latents become the samples again: f32 rounding of a transform of unit norm") {
  scratch dir;
  sound const original = test::tone(700, 3000);
  test::write_wav(dir.path / "one.wav", original);
  recordings const data = load_recordings(request(dir.path));
  std::vector<float> const back = data.sound_of(data.all[0].latents);
  REQUIRE(back.size() >= original.samples.size());
  for (std::size_t i = 0; i < back.size(); ++i)
    REQUIRE(std::abs(back[i] - (i < original.samples.size() ? original.samples[i] : 0.f)) < 2e-6f);
}

TEST_CASE("a channel without any sound is left as it is, not divided by 0") {
  scratch dir;
  test::write_wav(dir.path / "silence.wav", {8000, 1, std::vector<float>(3000)});
  recordings const data = load_recordings(request(dir.path));
  for (float x : data.all[0].latents) REQUIRE(x == 0.f);
}

TEST_CASE("what cannot be read is refused by the file's name") {
  scratch dir;
  auto const error = [&] { return error_of([&] { load_recordings(request(dir.path)); }); };
  CHECK(has(error(), "no-samples: --data: there is no .wav file in " + dir.path.string()));
  test::write_tones(dir.path);
  CHECK(error() == "no error");
  dir.write("noise.wav", "this is text");
  CHECK(has(error(), "bad-data: " + (dir.path / "noise.wav").string() + ": is no WAV file"));
  test::write_wav(dir.path / "noise.wav", test::tone(500, 2000));
  CHECK(error() == "no error");
  std::filesystem::resize_file(dir.path / "noise.wav", 4000);
  CHECK(has(error(), "noise.wav: is cut short: its chunk 'data' has 8000 bytes, 3956 are there"));
  sound fast = test::tone(500, 2000);
  fast.rate = 44100;
  test::write_wav(dir.path / "noise.wav", fast);
  CHECK(has(error(), "noise.wav: has 44100 samples per second, the files before it 8000"));
  std::filesystem::remove(dir.path / "noise.wav");
  dir.write("middle.txt", " \n");
  CHECK(has(error(), "bad-data: " + (dir.path / "middle.txt").string() + ": is no caption: it is empty"));
  dir.write("middle.txt", "caf\xe9");
  CHECK(has(error(), "middle.txt: is no caption: it is not UTF-8"));
  std::filesystem::remove(dir.path / "middle.txt");
  std::filesystem::create_directory(dir.path / "middle.txt");
  CHECK(has(error(), "middle.txt: is no caption: it is no file"));
  CHECK(has(error_of([&] { load_recordings(request(dir.path / "nowhere")); }), "no-data: --data: there is no "));
  CHECK(has(error_of([&] { default_recording_files(dir.path / "nowhere"); }),
            "install them with: apt install alsa-utils"));
}

TEST_CASE("recordings that leave nothing to validate with are refused") {
  scratch dir;
  test::write_wav(dir.path / "click.wav", test::tone(500, 60));
  CHECK(has(error_of([&] { load_recordings(request(dir.path)); }), "no-samples: the recordings are too short: "));
}
