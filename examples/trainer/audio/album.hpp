// Songs that exist nowhere: sounds with captions to train `dit` on, made from a seed in whole numbers, so that every
// machine makes the same bytes. A rate of 1600 samples a second makes a frame of 64 bands 40 ms, as the latents of
// ACE-Step have it: 240 s are 6000 frames, 3000 tokens of two. The captions are as long as encoder sequences were
// measured to be for songs of that length.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "wav.hpp"

namespace trainer {

struct album {
  char const* name;
  std::int64_t songs, shortest, longest;   ///< seconds; the first song is the longest, the second the shortest
  std::span<std::int64_t const> captions;  ///< bytes, one song after the other
};

/// albumF, eight songs of one to two minutes; albumI, twelve of up to 240 s. Throws bad-option, naming both.
album const& album_named(std::string const& name);

struct song {
  std::string caption;
  sound music;
};

/// Song `index` of the album.
song make_song(album const& a, std::uint64_t seed, std::int64_t index);

}  // namespace trainer
