// The blocks of a Hopper backward in one line: every key tile and every writer of dQ once, key tiles in the order of
// key_order, a section's writers behind its own key tiles and those of the section after it.
#include <lanewise/cuda/sm90/backward_tiles.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <vector>

using namespace lanewise;

TEST_CASE("key tiles come in their order and writers behind the section after theirs") {
  struct call {
    std::int64_t heads, most;
    std::int32_t queries, keys, ratio;
  };
  for (call const c : {call{1, 16, 64, 128, 1}, {16, 16, 512, 512, 1}, {32, 16, 1000, 300, 1}, {40, 16, 640, 512, 4},
                       {5, 2, 100, 1, 3}, {3, 2, 130, 0, 1}}) {
    CAPTURE(c.heads);
    CAPTURE(c.queries);
    tiling const t{c.queries, c.keys, 64, 128};
    sm90::key_order const order = sm90::key_order_of(t, {1, c.keys, c.heads, 64}, c.most);
    sm90::block_line const line = sm90::block_line_of(order, t.q_tiles(), c.ratio, true);
    std::int64_t next_tile = 0;
    std::vector<std::int64_t> written(std::size_t(c.heads * c.ratio * t.q_tiles()));
    for (std::int64_t x = 0; x < line.count(); ++x) {
      sm90::block_line::place const at = line[x];
      std::int64_t const before = at.section * line.keys;
      if (!at.writes) {
        CHECK(before + at.index == next_tile++);
        continue;
      }
      std::int64_t const behind = (at.section + 2) * std::int64_t(order.section) * order.tiles;
      CHECK(next_tile == (behind < order.count() ? behind : order.count()));
      std::int64_t const first = at.section * std::int64_t(order.section),
                         own = c.heads - first < order.section ? c.heads - first : order.section;
      for (std::int64_t y = at.index * std::int64_t(sm90::tiles_of_writer), n = 0; n < sm90::tiles_of_writer; ++y, ++n)
        if (y < own * c.ratio * t.q_tiles()) ++written[std::size_t(first * c.ratio * t.q_tiles() + y)];
    }
    CHECK(next_tile == order.count());
    for (std::int64_t const times : written) CHECK(times == 1);
  }
}

TEST_CASE("without dQ there are no writers, without heads no blocks") {
  tiling const t{512, 512, 64, 128};
  sm90::key_order const order = sm90::key_order_of(t, {2, 512, 12, 64}, 16);
  CHECK(sm90::block_line_of(order, t.q_tiles(), 1, false).count() == 2 * 12 * 4);
  CHECK(sm90::block_line_of(sm90::key_order_of(t, {0, 512, 12, 64}, 16), t.q_tiles(), 1, true).count() == 0);
}
