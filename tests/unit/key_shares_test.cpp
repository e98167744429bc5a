// Who shares a key tile's walk in the Hopper backward: every tile walked once, in ascending numbers, and the counts
// that the account of key_shares.hpp gives for known shapes on 132 multiprocessors.
#include <lanewise/cuda/sm90/key_shares.hpp>
#include <lanewise/variants.hpp>

#include <doctest/doctest.h>

#include <initializer_list>

using namespace lanewise;

TEST_CASE("blocks of a line walk every share of every key tile once, a tile behind those before it") {
  for (sm90::key_shares const line : {sm90::key_shares{5, 5, 1}, {7, 0, 3}, {9, 4, 2}}) {
    std::int64_t number = 0;
    for (std::int32_t tile = 0; tile < line.tiles; ++tile)
      for (std::int32_t share = 0; share < line.shares_of(tile); ++share, ++number) {
        sm90::key_shares::place const at = line[std::int32_t(number)];
        CHECK(at.tile == tile);
        CHECK(at.share == share);
      }
    CHECK(line.blocks() == number);
  }
}

TEST_CASE("every pair of query tile and head belongs to one share") {
  for (std::int32_t ratio : {1, 2, 4, 5})
    for (std::int32_t shares : {1, 2, 3, 8, 16})
      for (std::int32_t tile = 0; tile < 20; ++tile)
        for (std::int32_t head = 0; head < ratio; ++head) {
          int owners = 0;
          for (std::int32_t share = 0; share < shares; ++share) owners += sm90::owns(tile, ratio, head, share, shares);
          CHECK(owners == 1);
        }
}

TEST_CASE("walks are as long as the hull of the mask") {
  tiling const t{1024, 1024, 64, 128};
  sm90::walk_lengths const all = sm90::walks_of(full{}, t, 4);
  CHECK(all.longest == 64);
  CHECK(all.total == 8 * 64);
  sm90::walk_lengths const causal = sm90::walks_of(bind(causal_bottom_right{}, shape{1, 32, 1024, 1024}), t, 4);
  CHECK(causal.longest == 64);
  CHECK(causal.total == 4 * (16 + 14 + 12 + 10 + 8 + 6 + 4 + 2));
}

TEST_CASE("shares of known shapes") {
  constexpr std::int64_t part = 128 * 128;  // floats of a key tile at head dim 128
  auto const even = [](std::int64_t heads, std::int64_t key_tiles, std::int64_t steps) {
    return sm90::fastest_shares(heads, key_tiles, {steps, key_tiles * steps}, 132, part);
  };
  // 16 walks of 34 steps: 7 x 16 blocks of 5 steps end first. 192 of 188: a round of whole ones, then 60 halved.
  CHECK(even(8, 2, 34).blocks() == 7 * 16);
  CHECK(even(8, 24, 188).from == 132);
  CHECK(even(8, 24, 188).blocks() == 132 + 2 * 60);
  CHECK(even(8, 15, 40).blocks() == 120);     // 120 of 132 at work as it is
  CHECK(even(128, 4, 256).blocks() == 512);   // the last of four rounds is nearly full
  CHECK(even(128, 16, 32).blocks() == 2048);  // many rounds
  CHECK(even(8, 5, 2).blocks() == 40);        // nothing to share
  CHECK(even(0, 5, 2).blocks() == 0);
  // Causal, 8 heads: the longest of 17 walks, 136 steps, would take almost twice as long as all multiprocessors need;
  // of 28, 220 steps, halves would leave more sums than L2 holds.
  CHECK(sm90::fastest_shares(8, 17, {136, 1224}, 132, part).blocks() == 2 * 136);
  CHECK(sm90::fastest_shares(8, 28, {220, 3136}, 132, part).blocks() == 224);
}
