#include "album.hpp"

#include <algorithm>
#include <array>

#include "error.hpp"
#include "random.hpp"

namespace trainer {
namespace {

constexpr std::int64_t rate = 1600;

constexpr std::int64_t short_captions[] = {640, 238, 434, 609}, long_captions[] = {1877, 434, 1188, 640};
constexpr album albums[] = {{"albumF", 8, 60, 120, short_captions}, {"albumI", 12, 87, 240, long_captions}};

constexpr char const* moods[] = {"calm", "restless", "bright", "sombre", "playful", "solemn"};
constexpr char const* keys[] = {"A", "C", "D", "E", "G"};
constexpr char const* syllables[] = {"la", "di", "no", "ma", "re", "so", "ti", "lu"};
/// A pentatonic scale as ratios.
constexpr std::array<std::array<std::int64_t, 2>, 6> scale = {{{1, 1}, {9, 8}, {5, 4}, {3, 2}, {5, 3}, {2, 1}}};
/// Hertz of the keys an octave below the melody.
constexpr std::int64_t roots[] = {55, 65, 73, 82, 98};

/// A triangle of +-32767 at 2^32 steps a period.
constexpr std::int64_t triangle(std::uint32_t phase) {
  std::int64_t const at = phase >> 16;
  return std::min<std::int64_t>(2 * (at < 32768 ? at : 65535 - at), 65534) - 32767;
}

/// What a beat of a song sounds like, two bars of which are repeated until they change.
struct beat {
  std::uint32_t bass, melody;  ///< steps of the phase a sample
  bool struck;
};

constexpr std::uint32_t steps_of(std::int64_t root, std::array<std::int64_t, 2> ratio, std::int64_t octave) {
  return std::uint32_t((root * octave * ratio[0] << 32) / (rate * ratio[1]));
}

std::array<beat, 8> two_bars(random_numbers& draw, std::int64_t root) {
  std::array<beat, 8> bars{};
  std::uint32_t bass = 0;
  for (std::size_t i = 0; i < bars.size(); ++i) {
    if (i % 4 == 0) bass = steps_of(root, scale[draw.below(3)], 1);
    bars[i] = {bass, steps_of(root, scale[draw.below(scale.size())], 4), draw.below(3) > 0};
  }
  return bars;
}

}  // namespace

album const& album_named(std::string const& name) {
  for (album const& a : albums)
    if (name == a.name) return a;
  throw bad_option("--preset: " + name + " is neither albumF nor albumI");
}

song make_song(album const& a, std::uint64_t seed, std::int64_t index) {
  random_numbers draw(seed, stream::album, std::uint64_t(index));
  std::int64_t const seconds = index == 0 ? a.longest
                               : index == 1
                                   ? a.shortest
                                   : a.shortest + std::int64_t(draw.below(std::uint64_t(a.longest - a.shortest)));
  std::size_t const key = draw.below(std::size(roots));
  std::int64_t const beat_length = 640 + 40 * std::int64_t(draw.below(13));  // 85 to 150 beats a minute
  song s{.caption = std::string(moods[draw.below(std::size(moods))]) + " song in " + keys[key] + ", " +
                    std::to_string(60 * rate / beat_length) + " beats a minute;",
         .music = {rate, 1, std::vector<float>(std::size_t(seconds * rate))}};

  std::array<beat, 8> bars{};
  std::uint32_t bass = 0, melody = 0;
  for (std::int64_t i = 0; i < seconds * rate; ++i) {
    std::int64_t const number = i / beat_length, within = i % beat_length;
    if (i % (32 * beat_length) == 0) bars = two_bars(draw, roots[key]);
    beat const& b = bars[std::size_t(number % 8)];
    bass += b.bass, melody += b.melody;
    std::int64_t sample = triangle(bass) / 4 + triangle(melody) * (beat_length - within) / (3 * beat_length);
    constexpr std::int64_t stroke = 200;  // samples of a drum
    std::int64_t const noise = std::int64_t(draw.bits() >> 49) - 16384;
    if (b.struck && within < stroke) sample += noise * (stroke - within) / (2 * stroke);
    s.music.samples[std::size_t(i)] = float(sample) / 32768.f;
  }
  auto const length = std::size_t(a.captions[std::size_t(index) % a.captions.size()]);
  while (s.caption.size() < length) s.caption += std::string(" ") + syllables[draw.below(std::size(syllables))];
  s.caption.resize(length);
  if (s.caption.back() == ' ') s.caption.back() = '.';
  return s;
}

}  // namespace trainer
