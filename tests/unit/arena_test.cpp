// The arena: best fit and coalescing against a model that scans bytes, golden offsets of small graphs, views, in-place
// rules, error texts, bind. Larger programs: arena_plan_test.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <lanewise/memory/arena.hpp>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memory_support.hpp"

namespace {

using lanewise::arena_block;
using lanewise::arena_builder;
using lanewise::arena_plan;
using lanewise::free_blocks;
using lanewise::status;
using lanewise::status_code;
using lanewise::tensor_id;

constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();

std::vector<arena_block> holes(free_blocks const& blocks) {
  std::vector<arena_block> list;
  blocks.each_hole([&](arena_block hole) { list.push_back(hole); });
  return list;
}

}  // namespace

TEST_CASE("rounding up is checked against the largest arena") {
  using lanewise::arena_limit;
  CHECK(lanewise::round_up(0, 128) == 0u);
  CHECK(lanewise::round_up(1, 128) == 128u);
  CHECK(lanewise::round_up(128, 128) == 128u);
  CHECK(lanewise::round_up(arena_limit - 127, 128) == arena_limit - 127);
  CHECK(!lanewise::round_up(arena_limit - 126, 128));
  CHECK(!lanewise::round_up(huge - 3, 1));
  CHECK(lanewise::room_of(5, 4) == 8u);
  CHECK(lanewise::room_of(5, 4096) == 128u);
}

TEST_CASE("best fit takes the smallest hole that holds the request, the lowest of equal ones") {
  free_blocks blocks;
  std::size_t const sizes[] = {512, 128, 256, 128, 384, 128, 256, 128};  // every second one stays
  std::vector<arena_block> taken;
  for (std::size_t n : sizes) taken.push_back(*blocks.allocate(n));
  for (std::size_t i = 0; i < 8; i += 2) REQUIRE(blocks.release(taken[i]));
  REQUIRE(holes(blocks) == std::vector<arena_block>{{0, 512}, {640, 256}, {1024, 384}, {1536, 256}});

  CHECK(blocks.allocate(256)->offset == 640);   // exact, and the lower of two
  CHECK(blocks.allocate(300)->offset == 1024);  // 384 wins over 512, which lies lower
  CHECK(blocks.allocate(130)->offset == 1536);  // exact after rounding
  CHECK(blocks.allocate(640)->offset == 1920);  // none holds it: the range grows
  CHECK(blocks.allocate(128)->offset == 0);     // the remainder stays a hole
  CHECK(holes(blocks) == std::vector<arena_block>{{128, 384}});
}

TEST_CASE("a released block joins the holes beside it, and the open end") {
  free_blocks blocks;
  std::vector<arena_block> b;
  for (int i = 0; i < 6; ++i) b.push_back(*blocks.allocate(128));
  CHECK(blocks.release(b[1]));
  CHECK(blocks.release(b[3]));
  CHECK(holes(blocks) == std::vector<arena_block>{{128, 128}, {384, 128}});
  SUBCASE("both sides") {
    CHECK(blocks.release(b[2]));
    CHECK(holes(blocks) == std::vector<arena_block>{{128, 384}});
  }
  SUBCASE("left only") {
    CHECK(blocks.release(b[4]));
    CHECK(holes(blocks) == std::vector<arena_block>{{128, 128}, {384, 256}});
  }
  SUBCASE("right only") {
    CHECK(blocks.release(b[0]));
    CHECK(holes(blocks) == std::vector<arena_block>{{0, 256}, {384, 128}});
  }
  SUBCASE("the end: what was at the top is open space again and raises no peak") {
    CHECK(blocks.release(b[4]));
    CHECK(blocks.release(b[5]));
    CHECK(holes(blocks) == std::vector<arena_block>{{128, 128}});
    CHECK(blocks.allocate(384)->offset == 384);
    CHECK(blocks.statistics().peak == 768);
  }
}

TEST_CASE("a stricter alignment passes over holes that are large enough but badly placed") {
  free_blocks blocks;
  std::vector<arena_block> b;
  for (int i = 0; i < 8; ++i) b.push_back(*blocks.allocate(128));
  blocks.release(b[1]);                          // [128, 256): no multiple of 512
  for (int i : {3, 4, 5}) blocks.release(b[i]);  // [384, 768): 512 is one
  CHECK(blocks.allocate(128, 512)->offset == 512);
  CHECK(holes(blocks) == std::vector<arena_block>{{128, 128}, {384, 128}, {640, 128}});
  CHECK(blocks.allocate(64, 4096)->offset == 4096);  // grows; the space before it is a hole
  CHECK(holes(blocks).back() == arena_block{1024, 3072});
  CHECK(blocks.statistics().peak == 4096 + 64 + 64);
  CHECK(blocks.allocate(8, 8)->offset == 128);
}

TEST_CASE("a release of what is not in use is refused and changes nothing") {
  free_blocks blocks;
  auto const a = *blocks.allocate(256), b = *blocks.allocate(256), c = *blocks.allocate(256);
  REQUIRE(blocks.release(b));
  auto const before = blocks.statistics();
  CHECK(!blocks.release(b));
  CHECK(!blocks.release({a.offset, 512}));
  CHECK(!blocks.release({b.offset + 128, 256}));
  CHECK(!blocks.release({b.offset - 128, 256}));
  CHECK(!blocks.release({c.offset, 257}));
  CHECK(!blocks.release({huge - 1, 2}));
  CHECK(!blocks.release({c.offset, huge}));
  CHECK(blocks.statistics() == before);
  CHECK(holes(blocks) == std::vector<arena_block>{b});
  CHECK(blocks.release({a.offset + 128, 128}));  // a part
  CHECK(holes(blocks) == std::vector<arena_block>{{128, 384}});
}

TEST_CASE("requests beyond the limit or any address are refused and change nothing; zero bytes take nothing") {
  free_blocks blocks(1024);
  CHECK(*blocks.allocate(0) == arena_block{});
  CHECK(blocks.allocate(896)->offset == 0);
  CHECK(!blocks.allocate(129));
  CHECK(!blocks.allocate(8, 2048));
  CHECK(!blocks.allocate(huge));
  CHECK(!blocks.allocate(huge - 127));
  CHECK(!blocks.allocate(8, 0));
  CHECK(!blocks.allocate(8, 24));
  CHECK(blocks.statistics().live == 896);
  CHECK(holes(blocks).empty());
  CHECK(blocks.allocate(128)->offset == 896);

  free_blocks open(huge);
  std::size_t const half = lanewise::arena_limit / 2 / 128 * 128;
  CHECK(open.allocate(half)->offset == 0);
  CHECK(open.allocate(half)->offset == half);
  CHECK(!open.allocate(half));
}

TEST_CASE("the table grows: ten thousand holes at once, each found and filled again") {
  constexpr std::size_t n = 10000;
  free_blocks blocks;
  std::vector<arena_block> taken;
  for (std::size_t i = 0; i < 2 * n + 1; ++i) taken.push_back(*blocks.allocate(i % 2 ? 128 * (1 + i % 7) : 128));
  for (std::size_t i = 1; i < 2 * n; i += 2) REQUIRE(blocks.release(taken[i]));
  CHECK(blocks.statistics().free_blocks == n);
  CHECK(blocks.statistics().most_free_blocks == n);
  std::size_t const peak = blocks.statistics().peak;
  for (std::size_t i = 1; i < 2 * n; i += 2) REQUIRE(blocks.allocate(taken[i].bytes));
  CHECK(blocks.statistics().peak == peak);
  CHECK(blocks.statistics().free_blocks == 0);
  CHECK(blocks.statistics().live == peak);
  for (arena_block b : taken) REQUIRE(blocks.release(b));
  CHECK(holes(blocks).empty());
  CHECK(blocks.statistics().live == 0);
}

namespace {

/// Best fit by scanning a map of bytes: slow, and short enough to be believed.
struct byte_model {
  std::vector<char> used;
  std::size_t peak = 0, most_holes = 0;

  std::size_t end() const {
    std::size_t n = used.size();
    while (n > 0 && !used[n - 1]) --n;
    return n;
  }
  std::vector<arena_block> holes() const {
    std::vector<arena_block> list;
    for (std::size_t i = 0; i < end(); ++i) {
      if (used[i]) continue;
      if (list.empty() || list.back().end() != i) list.push_back({i, 0});
      ++list.back().bytes;
    }
    return list;
  }
  std::size_t allocate(std::size_t room, std::size_t align) {
    std::optional<arena_block> best;
    for (arena_block hole : holes()) {
      std::size_t const at = (hole.offset + align - 1) / align * align;
      if (at + room <= hole.end() && (!best || hole.bytes < best->bytes)) best = hole;
    }
    std::size_t const at = ((best ? best->offset : end()) + align - 1) / align * align;
    if (used.size() < at + room) used.resize(at + room);
    std::fill_n(used.begin() + std::ptrdiff_t(at), room, 1);
    peak = std::max(peak, end());
    most_holes = std::max(most_holes, holes().size());
    return at;
  }
  bool take(arena_block b) {
    if (used.size() < b.end()) used.resize(b.end());
    auto const from = used.begin() + std::ptrdiff_t(b.offset), to = used.begin() + std::ptrdiff_t(b.end());
    if (std::find(from, to, 1) != to) return false;
    std::fill(from, to, 1);
    peak = std::max(peak, end());
    most_holes = std::max(most_holes, holes().size());
    return true;
  }
  void release(arena_block b) {
    std::fill_n(used.begin() + std::ptrdiff_t(b.offset), b.bytes, 0);
    most_holes = std::max(most_holes, holes().size());
  }
};

}  // namespace

TEST_CASE("random requests lie where a scan of all bytes puts them, and a range is taken exactly when it is free") {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    free_blocks blocks;
    byte_model model;
    std::vector<arena_block> live;
    std::size_t live_bytes = 0;
    for (int i = 0; i < 150; ++i) {
      if (random() % 4 == 0) {
        arena_block const b{random() % 2000, 1 + random() % 90};
        bool const taken = model.take(b);
        REQUIRE(blocks.take(b) == taken);
        if (!taken) continue;
        live.push_back(b);
        live_bytes += b.bytes;
      } else if (live.empty() || random() % 5 < 3) {
        std::size_t const align = std::size_t(1) << (random() % 7), bytes = random() % 90;
        std::size_t const room = (bytes + align - 1) / align * align;
        arena_block const b = *blocks.allocate(bytes, align);
        REQUIRE(b.bytes == room);
        if (room == 0) continue;
        REQUIRE(b.offset == model.allocate(room, align));
        live.push_back(b);
        live_bytes += room;
      } else {
        std::swap(live[random() % live.size()], live.back());
        REQUIRE(blocks.release(live.back()));
        model.release(live.back());
        live_bytes -= live.back().bytes;
        live.pop_back();
      }
      REQUIRE(holes(blocks) == model.holes());
      REQUIRE(blocks.statistics().peak == model.peak);
      REQUIRE(blocks.statistics().most_free_blocks == model.most_holes);
      REQUIRE(blocks.statistics().live == live_bytes);
    }
  }
}

TEST_CASE("fragmentation is the share of the peak that was never in use at once") {
  free_blocks blocks;
  auto const a = *blocks.allocate(1024);
  blocks.allocate(128);
  CHECK(blocks.statistics().fragmentation() == 0.0);
  blocks.release(a);
  blocks.allocate(2048);
  auto const s = blocks.statistics();
  CHECK(s.peak == 3200);
  CHECK(s.live_at_peak == 2176);
  CHECK(s.most_live == 2176);
  CHECK(s.fragmentation() == doctest::Approx(0.32));  // 1024 / 3200
  blocks.allocate(1024);                              // fills the hole: more is live, the peak stays
  CHECK(blocks.statistics().most_live == 3200);
  CHECK(blocks.statistics().live_at_peak == 2176);
  CHECK(blocks.statistics().fragmentation() == 0.0);
  CHECK(lanewise::arena_statistics{}.fragmentation() == 0.0);
}

TEST_CASE("golden offsets: a chain alternates between two places") {
  arena_builder b;
  auto const x = b.input(1000, "x");
  auto const h1 = b.tensor(1000, "h1"), h2 = b.tensor(1000, "h2"), y = b.tensor(4, "y");
  b.op({x}, {h1}, "a");
  b.op({h1}, {h2}, "b");
  b.op({h2}, {y}, "c");
  b.keep(y);
  arena_plan const plan = b.plan();
  REQUIRE(text(plan.result()) == "ok");
  CHECK(plan[x].offset == 0);
  CHECK(plan[h1].offset == 1024);
  CHECK(plan[h2].offset == 0);
  CHECK(plan[y].offset == 1024);
  CHECK(plan.peak() == 2048);
  CHECK(plan.peak_op() == 0);
  CHECK(plan.statistics().fragmentation() == 0.0);
  CHECK(plan[h1].first == 0);
  CHECK(plan[h1].last == 1);
  CHECK(plan[y].last == 3);
  CHECK(text(plan.verify()) == "ok");
}

TEST_CASE("golden offsets: forward and backward of two layers") {
  arena_builder b;
  auto const w = b.persistent(512, "weight_grad");
  auto const x = b.input(256, "x"), a1 = b.tensor(512, {"a", 1}), a2 = b.tensor(512, {"a", 2}),
             loss = b.tensor(4, "loss");
  b.op({x}, {a1}, "layer_1");
  b.op({a1}, {a2}, "layer_2");
  b.op({a2}, {loss}, "loss");
  auto const d2 = b.tensor(512, {"d", 2}), d1 = b.tensor(512, {"d", 1}), scratch = b.tensor(300, "scratch");
  b.op({a2}, {d2}, "d_loss");
  b.op({d2, a1}, {d1, scratch, w}, "d_layer_2");
  b.op({d1, x}, {w}, "d_layer_1");
  b.keep(loss);
  arena_plan const plan = b.plan();
  REQUIRE(text(plan.result()) == "ok");
  std::vector<std::size_t> offsets;
  for (auto const& p : plan.tensors()) offsets.push_back(p.offset);
  //                                     w  x    a1   a2    loss  d2    d1    scratch
  CHECK(offsets == std::vector<std::size_t>{0, 512, 768, 1280, 1792, 1920, 1280, 2432});
  CHECK(plan.peak() == 2816);
  CHECK(plan.peak_op() == 4);
  CHECK(plan.statistics().most_live == 2816);
  CHECK(text(plan.verify()) == "ok");
  CHECK(plan.largest_at(4) == w);
}

TEST_CASE("a view shares its parent's bytes and keeps all of them alive") {
  arena_builder b;
  auto const qkv = b.tensor(3000, "qkv");
  auto const kv = b.view_of(qkv, 1000, 2000, "kv"), v = b.view_of(kv, 1000, 1000, "v");
  auto const late = b.tensor(3000, "late"), y = b.tensor(10, "y");
  b.op({}, {qkv}, "project");
  b.op({qkv}, {y}, "read");
  b.op({}, {late}, "other");
  b.op({v, late, y}, {}, "use");
  arena_plan const plan = b.plan();
  REQUIRE(text(plan.result()) == "ok");
  CHECK(plan[kv].offset == plan[qkv].offset + 1000);
  CHECK(plan[v].offset == plan[qkv].offset + 2000);
  CHECK(plan[v].parent == qkv);
  CHECK(plan[qkv].last == 3);
  CHECK(plan[late].offset >= plan[qkv].offset + 3000);
  CHECK(text(plan.verify()) == "ok");

  b.keep(v);  // keeps the storage
  CHECK(b.plan()[qkv].last == 4);
  CHECK(b.plan()[v].kept);
}

TEST_CASE("in place only with permission, for the last reader, for all of a storage of the same size") {
  arena_builder b;
  auto const x = b.input(1000, "x");
  auto const y = b.tensor(1000, "y");
  auto const planned_in_place = [&] {
    arena_plan const plan = b.plan();
    REQUIRE(text(plan.result()) == "ok");
    REQUIRE(text(plan.verify()) == "ok");
    bool const same = plan[y].offset == plan[x].offset;
    CHECK(bool(plan[y].in_place_of) == same);
    CHECK(plan.peak() >= (same ? 1024 : 2048));
    return same;
  };
  SUBCASE("granted") {
    b.op({x}, {y}, "scale").in_place(y, x);
    CHECK(planned_in_place());
    CHECK(b.plan().peak() == 1024);
  }
  SUBCASE("granted, both operands the same") {
    b.op({x, x}, {y}, "square").in_place(y, x);
    CHECK(planned_in_place());
  }
  SUBCASE("granted through a view of everything, though the view is dead afterwards") {
    auto const all = b.view_of(x, 0, 1000, "all");
    b.op({all}, {y}, "scale").in_place(y, all);
    CHECK(planned_in_place());
  }
  SUBCASE("granted late: the permission is recorded after another op") {
    auto first = b.op({x}, {y}, "scale");
    auto const z = b.tensor(1000, "z");
    b.op({y}, {z}, "again").in_place(z, y);
    first.in_place(y, x);
    CHECK(planned_in_place());
    CHECK(b.plan().peak() == 1024);
  }
  SUBCASE("granted to one output only") {
    auto const z = b.tensor(1000, "z");
    b.op({x}, {y, z}, "split").in_place(y, x).in_place(z, x);
    CHECK(planned_in_place());
    CHECK(b.plan()[z].offset == 1024);
  }
  SUBCASE("no permission") {
    b.op({x}, {y}, "scale");
    CHECK(!planned_in_place());
  }
  SUBCASE("read later") {
    b.op({x}, {y}, "scale").in_place(y, x);
    b.op({x, y}, {}, "add");
    CHECK(!planned_in_place());
  }
  SUBCASE("a view is read later") {
    auto const part = b.view_of(x, 8, 16, "part");
    b.op({x}, {y}, "scale").in_place(y, x);
    b.op({part}, {}, "peek");
    CHECK(!planned_in_place());
  }
  SUBCASE("kept for the caller") {
    b.op({x}, {y}, "scale").in_place(y, x);
    b.keep(x);
    CHECK(!planned_in_place());
  }
  SUBCASE("another part of the storage is an operand") {
    auto const part = b.view_of(x, 8, 16, "part");
    b.op({x, part}, {y}, "mix").in_place(y, x);
    CHECK(!planned_in_place());
  }
  SUBCASE("the input is written too") {
    b.op({x}, {x, y}, "update").in_place(y, x);
    CHECK(!planned_in_place());
  }
  SUBCASE("only a part of the storage") {
    auto const part = b.view_of(x, 0, 900, "part");
    b.op({part}, {y}, "scale").in_place(y, part);
    CHECK(!planned_in_place());
  }
  SUBCASE("not as large") {
    auto const small = b.tensor(900, "small");
    b.op({x}, {small}, "narrow").in_place(small, x);
    b.op({small}, {y}, "widen");
    CHECK(b.plan()[small].offset != 0);
  }
  SUBCASE("not as strictly aligned") {
    auto const pad = b.tensor(128, "pad"), mid = b.tensor(128, "mid"), strict = b.tensor(128, "strict", 4096);
    b.op({x}, {y, pad, mid}, "make");
    b.op({mid}, {strict}, "copy").in_place(strict, mid);
    CHECK(b.plan()[strict].offset % 4096 == 0);
    CHECK(!b.plan()[strict].in_place_of);
  }
}

TEST_CASE("a forward's pack that the backward reads is reused by nothing between, with or without a view") {
  for (bool with_view : {false, true}) {
    CAPTURE(with_view);
    arena_builder b;
    auto const q = b.input(4096, "q");
    auto const pack = b.tensor(4096, "o_lse"), scaled = b.tensor(4096, "scaled"), sum = b.tensor(4096, "sum"),
               d = b.tensor(4096, "d_q");
    b.op({q}, {pack}, "attention");
    auto const read = with_view ? b.view_of(pack, 0, 4096, "o") : pack;
    b.op({read}, {scaled}, "scale").in_place(scaled, read);
    b.op({scaled}, {sum}, "accumulate").in_place(sum, scaled);
    b.op({q, pack, sum}, {d}, "d_attention").in_place(d, sum);
    b.keep(d);
    arena_plan const plan = b.plan();
    REQUIRE(text(plan.verify()) == "ok");
    CHECK(plan[q].offset == 0);
    CHECK(plan[pack].offset == 4096);
    CHECK(plan[scaled].offset == 8192);
    CHECK(plan[sum].offset == 8192);  // scaled has no later reader
    CHECK(plan[d].offset == 8192);
    CHECK(plan.peak() == 3 * 4096);
  }
}

TEST_CASE("kept, persistent and input tensors, scratch, zero bytes, alignments") {
  arena_builder b;
  auto const weights = b.persistent(100, "weights"), x = b.input(100, "x"), page = b.tensor(100, "page", 4096);
  auto const scratch = b.tensor(500, "scratch"), nothing = b.tensor(0, "nothing"), y = b.tensor(100, "y"),
             z = b.tensor(100, "z");
  b.op({x, weights}, {page, scratch, nothing}, "first");
  b.op({page, nothing}, {y}, "second");
  b.op({y}, {z}, "third");
  b.keep(y);
  arena_plan const plan = b.plan();
  REQUIRE(text(plan.verify()) == "ok");
  CHECK(plan[weights].offset == 0);
  CHECK(plan[x].offset == 128);
  CHECK(plan[page].offset == 4096);
  CHECK(plan[scratch].offset == 256);
  CHECK(plan[y].offset == 128);  // x's place, in the hole that scratch left
  CHECK(plan[z].offset == 256);
  CHECK(plan.peak() == 4224);
  CHECK(plan.alignment() == 4096);
  CHECK(plan[nothing].offset == 0);
}

TEST_CASE("mistakes in a program are named, the first one first") {
  arena_builder b;
  auto const x = b.input(8, "x");
  auto const planned = [&] {
    arena_plan const plan = b.plan();
    CHECK(!plan);
    CHECK(plan.peak() == 0);
    CHECK(plan.tensors().empty());
    CHECK(text(plan.verify()) == text(plan.result()));
    CHECK(text(plan.fits(huge)) == text(plan.result()));
    return text(plan.result());
  };
  SUBCASE("read before written") {
    auto const h = b.tensor(8, {"h", 3});
    b.op({x, h}, {}, "add");
    CHECK(planned() == "op 0 'add' reads 'h[3]', which nothing has written; is it an input?");
    CHECK(b.plan().result().code == status_code::bad_argument);
  }
  SUBCASE("named by no op") {
    b.op({x}, {});
    b.tensor(24, "forgotten");
    CHECK(planned() == "tensor 'forgotten' of 24 bytes is named by no op");
  }
  SUBCASE("kept but never written") {
    b.op({x}, {});
    b.keep(b.tensor(24, "result"));
    CHECK(planned() == "tensor 'result' of 24 bytes is named by no op");
  }
  SUBCASE("a size that wraps") {
    auto const h = b.tensor(std::size_t(0) - 256, "h");
    b.op({x}, {h});
    CHECK(planned() == "tensor 'h' of 18446744073709551360 bytes is larger than any arena");
    CHECK(b.plan().result().code == status_code::bad_extent);
  }
  SUBCASE("a sum that wraps") {
    auto const most = lanewise::arena_limit / 128 * 128;
    auto const h = b.tensor(most, "h"), y = b.tensor(256, "y");
    b.op({}, {h}, "fill");
    b.op({x, h}, {y}, "sum");
    CHECK(planned() == "tensor 'h' of 9223372036854775680 bytes beside 128 live ones is larger than any arena");
  }
  SUBCASE("an alignment that is no power of two") {
    b.op({x}, {b.tensor(8, "h", 96)});
    CHECK(planned() == "tensor 'h': alignment 96 is not a power of two");
  }
  SUBCASE("a view past the end, also by wrapping") {
    b.op({x}, {});
    CHECK(!b.view_of(x, 4, 8, "part"));
    CHECK(!b.view_of(x, 4, huge - 2, "part"));
    CHECK(planned() == "view 'part' of 8 bytes at 4 passes the end of 'x', 8 bytes");
  }
  SUBCASE("ids of nowhere") {
    b.op({tensor_id{}}, {}, "lost");
    b.view_of({77}, 0, 0, "v");
    b.keep({78});
    CHECK(planned() == "op 'lost' names a tensor that this builder did not make");
  }
  SUBCASE("a permission for tensors of another op") {
    auto const h = b.tensor(8, "h"), y = b.tensor(8, "y");
    b.op({x}, {h}, "a");
    b.op({h}, {y}, "b").in_place(y, x);
    CHECK(planned() == "op 1 'b': in_place needs an output and an input of this op");
  }
}

TEST_CASE("bind checks size and address, and gives typed pointers") {
  arena_builder b;
  auto const x = b.input(40, "x"), y = b.tensor(24, {"ffn_up", 2}, 256);
  b.op({x}, {y}, "ffn");
  b.keep(y);
  arena_plan const plan = b.plan();
  REQUIRE(plan.peak() == 384);
  aligned_buffer const buffer(512);
  lanewise::arena memory;
  auto const bound = [&](void* base, std::size_t bytes) { return plan.bind(base, bytes, memory); };

  CHECK(text(bound(buffer.data(), 384)) == "ok");
  CHECK(memory.at(x) == buffer.data());
  CHECK(static_cast<void*>(memory.at<double>(y)) == buffer.data() + 256);
  CHECK(memory.span<double>(y).size() == 3);
  CHECK(memory.span<float>(x).size() == 10);

  CHECK(text(bound(buffer.data(), 383)) ==
        "plan needs 384 bytes, budget 383: 1 short at op 0 'ffn'; the largest tensor there is 'x' of 40 bytes");
  CHECK(bound(buffer.data(), 383).code == status_code::out_of_memory);
  CHECK(text(bound(nullptr, 384)) == "the buffer is null and the plan needs 384 bytes");
  CHECK(text(bound(buffer.data() + 128, 384)) ==
        "the buffer lies 128 bytes beyond a multiple of 256, which its strictest tensor needs");
  CHECK(bound(buffer.data() + 128, 384).code == status_code::bad_workspace);

  arena_plan const empty = arena_builder{}.plan();
  CHECK(text(empty.bind(nullptr, 0, memory)) == "ok");
}

TEST_CASE("verify_placements finds each kind of fault") {
  using lanewise::placement;
  auto const verdict = [](std::vector<placement> const& tensors) {
    return text(lanewise::verify_placements(tensors, 1024));
  };
  placement const a{.name = "a", .bytes = 256, .offset = 0, .first = 0, .last = 2};
  auto const b = [](auto change) {
    placement p{.name = "b", .bytes = 256, .offset = 256, .first = 1, .last = 3};
    change(p);
    return p;
  };
  CHECK(verdict({a, b([](auto&) {})}) == "ok");
  CHECK(verdict({a, b([](auto& p) { p.offset = 128; })}) ==
        "plan: tensor 'b' of 256 bytes at 128 overlaps a live tensor at 0");
  CHECK(verdict({a, b([](auto& p) { p.offset = 0, p.first = 0, p.last = 0; })}) ==
        "plan: tensor 'b' of 256 bytes at 0 overlaps a live tensor at 0");
  CHECK(verdict({b([](auto& p) { p.offset = 128; }), a}) ==
        "plan: tensor 'b' of 256 bytes at 128 overlaps a live tensor at 0");
  CHECK(verdict({a, b([](auto& p) { p.offset = 0, p.first = 2; })}) ==
        "plan: tensor 'b' of 256 bytes at 0 overlaps a live tensor at 0");  // both belong to op 2
  CHECK(verdict({a, b([](auto& p) { p.offset = 0, p.first = 3; })}) == "ok");
  CHECK(verdict({a, b([](auto& p) { p.offset = 0, p.bytes = 0; })}) == "ok");
  CHECK(verdict({a, b([](auto& p) { p.offset = 896; })}) ==
        "plan: tensor 'b' of 256 bytes at 896 passes the peak 1024");
  CHECK(verdict({a, b([](auto& p) { p.offset = 260; })}) ==
        "plan: tensor 'b' of 256 bytes at 260 is not aligned to 128");
  auto const view = [](std::size_t offset) {
    return placement{.name = "v", .bytes = 8, .align = 1, .offset = offset, .parent = {0}};
  };
  CHECK(verdict({a, view(248)}) == "ok");
  CHECK(verdict({a, view(249)}) == "plan: tensor 'v' of 8 bytes at 249 leaves its parent at 0");
  auto const takes_over = [](std::int64_t first) {
    return placement{.name = "t", .bytes = 256, .offset = 0, .first = first, .last = 5, .in_place_of = {0}};
  };
  CHECK(verdict({a, takes_over(2)}) == "ok");
  placement kept = a;
  kept.kept = true;
  CHECK(verdict({kept, takes_over(2)}) ==
        "plan: tensor 't' of 256 bytes at 0 takes over a tensor that is needed until op 2");
  CHECK(verdict({a, takes_over(1)}) ==
        "plan: tensor 't' of 256 bytes at 0 takes over a tensor that is needed until op 2");
  CHECK(verdict({a, takes_over(2), takes_over(2)}) ==
        "plan: tensor 't' of 256 bytes at 0 takes over a tensor that is needed until op 2");
}
