// Random numbers that are a pure function of (seed, stream, index): nothing to save and restore, and a resumed run
// draws what the uninterrupted one would have drawn. The mixer is splitmix64's (Steele, Lea, Flood 2014).
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace trainer {

/// What a number is drawn for; each has a sequence of its own.
enum class stream : std::uint64_t {
  weights = 1,
  split = 2,
  windows = 3,
  sampling = 4,
  adapters = 5,
  validation = 6,
  noise = 7,
  album = 8
};

constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class random_numbers {
 public:
  constexpr random_numbers(std::uint64_t seed, stream use, std::uint64_t position = 0)
      : key_(mix(mix(seed) ^ std::uint64_t(use)) ^ mix(position)) {}

  constexpr std::uint64_t bits() { return mix(key_ + next_++ * 0x632be59bd9b4e019u); }
  /// 0 ... n-1; the bias is below n / 2^64.
  constexpr std::uint64_t below(std::uint64_t n) {
    return std::uint64_t((static_cast<unsigned __int128>(bits()) * n) >> 64);
  }
  /// In (0, 1).
  constexpr double uniform() { return (double(bits() >> 11) + 0.5) * 0x1p-53; }
  /// As if so many bits() had been drawn; normal() draws two.
  constexpr void skip(std::uint64_t draws) { next_ += draws; }
  /// N(0, 1), by Box and Muller.
  double normal() { return std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()); }

 private:
  std::uint64_t key_, next_ = 0;
};

}  // namespace trainer
