// Plans of whole programs: random ones run on a buffer whose every byte carries its owner, statistics against lifetimes
// found here, budgets and fit, and the training graph of a large transformer with adapters.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <lanewise/memory/arena.hpp>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lokr_graph.hpp"
#include "memory_support.hpp"

using lanewise::arena_builder;
using lanewise::arena_plan;
using lanewise::status;
using lanewise::status_code;
using lanewise::tensor_id;

namespace {

/// A random program with its own record of what it told the builder.
struct random_program {
  struct tensor {
    std::size_t bytes, align;
    int root;            ///< itself, or of a view the tensor whose bytes it shares
    std::size_t offset;  ///< of a view: in the root
    bool input = false, kept = false, written = false;
    tensor_id id{};
  };
  struct op {
    std::vector<int> reads, writes;
    std::vector<std::pair<int, int>> permits;  ///< (output, input)
  };
  std::vector<tensor> tensors;
  std::vector<op> ops;
  arena_builder builder;
  std::mt19937 random;

  explicit random_program(std::uint32_t seed, int length = 0) : random(seed) {
    int const inputs = 1 + below(4), n = length ? length : 3 + below(40);
    for (int i = 0; i < inputs; ++i) add(true);
    for (int i = 0; i < n; ++i) step();
    for (int i = 0; i < int(tensors.size()); ++i)
      if (below(8) == 0 && at(root(i)).written) {
        builder.keep(at(i).id);
        at(root(i)).kept = true;
      }
    std::vector<int> rest;  // what no op has named is read at the end
    for (int i = 0; i < int(tensors.size()); ++i)
      if (at(i).input) rest.push_back(i);
    record({rest, {}, {}});
  }

  int below(int n) { return int(random() % std::uint32_t(n)); }
  tensor& at(int i) { return tensors[std::size_t(i)]; }
  tensor const& at(int i) const { return tensors[std::size_t(i)]; }
  int root(int i) const { return at(i).root; }

  int add(bool input) {
    tensor t{};
    t.bytes = below(10) == 0 ? 0 : below(3) == 0 ? 512 : std::size_t(1 + below(1500));
    t.align = std::size_t(1) << (below(4) == 0 ? below(10) : 7);
    t.root = int(tensors.size());
    t.input = t.written = input;
    t.kept = input && below(3) == 0;
    t.id = t.kept  ? builder.persistent(t.bytes, "persistent", t.align)
           : input ? builder.input(t.bytes, "input", t.align)
                   : builder.tensor(t.bytes, "tensor", t.align);
    tensors.push_back(t);
    return t.root;
  }

  void step() {
    op now;
    for (int i = below(4); i > 0; --i) {
      int const pick =
          below(3) ? int(tensors.size()) - 1 - below(std::min(6, int(tensors.size()))) : below(int(tensors.size()));
      if (at(root(pick)).written) now.reads.push_back(pick);
    }
    for (int i = 1 + below(2); i > 0; --i) {
      int const out = add(false);
      now.writes.push_back(out);
      at(out).written = true;
      for (int read : now.reads)
        if (below(2)) now.permits.push_back({out, read});
    }
    if (below(5) == 0) {  // accumulation into something that is there
      int const pick = below(int(tensors.size()));
      if (at(root(pick)).written) now.writes.push_back(pick);
    }
    record(now);
    while (below(3) == 0) {  // a view of something
      int const parent = below(int(tensors.size()));
      tensor const p = at(parent);
      bool const whole = below(2);
      std::size_t const offset = whole ? 0 : std::size_t(below(int(p.bytes) + 1));
      std::size_t const bytes = whole ? p.bytes : std::size_t(below(int(p.bytes - offset) + 1));
      tensors.push_back(
          {bytes, 1, p.root, p.offset + offset, false, false, false, builder.view_of(p.id, offset, bytes, "view")});
    }
  }

  void record(op const& now) {
    std::vector<tensor_id> reads, writes;
    for (int i : now.reads) reads.push_back(at(i).id);
    for (int i : now.writes) writes.push_back(at(i).id);
    auto ref = builder.op(reads, writes, "op");
    for (auto [out, in] : now.permits) ref.in_place(at(out).id, at(in).id);
    ops.push_back(now);
  }

  /// Runs the program on memory whose every byte says who owns it. Returns what went wrong, or "ok".
  std::string run_on(arena_plan const& plan, std::vector<int>& owner, std::byte* base) const {
    lanewise::arena memory;
    if (status s = plan.bind(base, owner.size(), memory); !s) return text(s);
    auto const range = [&](int i) {
      std::size_t const from = std::size_t(memory.at(at(i).id) - base);
      return std::pair{from, from + at(i).bytes};
    };
    auto const owned = [&](int i) {
      auto const [from, to] = range(i);
      return std::all_of(owner.begin() + std::ptrdiff_t(from), owner.begin() + std::ptrdiff_t(to),
                         [&](int o) { return o == root(i); });
    };
    auto const stamp = [&](int i) {
      auto const [from, to] = range(i);
      std::fill(owner.begin() + std::ptrdiff_t(from), owner.begin() + std::ptrdiff_t(to), i);
    };
    auto const meet = [&](int a, int b) {
      auto const [a0, a1] = range(a);
      auto const [b0, b1] = range(b);
      return a0 < b1 && b0 < a1;
    };
    std::vector<char> written(tensors.size());
    for (int i = 0; i < int(tensors.size()); ++i) {
      tensor const& t = at(i);
      auto const [from, to] = range(i);
      if (to > owner.size() || from % t.align != 0) return "tensor " + std::to_string(i) + " is misplaced";
      if (from != range(t.root).first + t.offset) return "view " + std::to_string(i) + " is not in its parent";
      if (!t.input) continue;
      stamp(i);
      written[std::size_t(i)] = true;
    }
    for (std::size_t n = 0; n < ops.size(); ++n) {
      op const& now = ops[n];
      std::string const where = "op " + std::to_string(n) + ", tensor ";
      for (int read : now.reads)
        if (!owned(read)) return where + std::to_string(read) + ": contents are gone before they are read";
      for (int out : now.writes) {
        for (int read : now.reads) {
          bool const permitted =
              std::find(now.permits.begin(), now.permits.end(), std::pair{out, read}) != now.permits.end();
          if (root(read) != root(out) && !permitted && meet(out, read))
            return where + std::to_string(out) + " lies on an operand";
        }
        for (int other : now.writes)
          if (root(other) != root(out) && meet(out, other))
            return where + std::to_string(out) + " lies on another output";
        if (!written[std::size_t(root(out))]) stamp(root(out));
        else if (!owned(out)) return where + std::to_string(out) + ": the sum is gone before it is added to";
        written[std::size_t(root(out))] = true;
      }
    }
    for (int i = 0; i < int(tensors.size()); ++i)
      if (at(root(i)).kept && !owned(i)) return "tensor " + std::to_string(i) + " was not kept";
    return "ok";
  }

  /// Most bytes needed at once, from lifetimes found here: no placement with the plan's in-place pairs needs less.
  std::size_t lower_bound(arena_plan const& plan) const {
    std::vector<int> first(tensors.size(), -2), last(tensors.size(), -2);
    int const end = int(ops.size());
    for (int n = 0; n < end; ++n)
      for (auto const* list : {&ops[std::size_t(n)].reads, &ops[std::size_t(n)].writes})
        for (int i : *list) {
          std::size_t const r = std::size_t(root(i));
          if (first[r] == -2) first[r] = n;
          last[r] = n;
        }
    std::size_t most = 0;
    for (int n = -1; n < end; ++n) {
      std::size_t sum = 0;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        tensor const& t = tensors[i];
        if (t.root != int(i) || (t.input ? -1 : first[i]) > n || (t.kept ? end : last[i]) < n) continue;
        bool const taken_over = std::any_of(plan.tensors().begin(), plan.tensors().end(),
                                            [&](auto const& p) { return p.in_place_of == t.id && p.first == n; });
        std::size_t const unit = std::min<std::size_t>(t.align, 128);
        if (!taken_over) sum += (t.bytes + unit - 1) / unit * unit;
      }
      most = std::max(most, sum);
    }
    return most;
  }
};

}  // namespace

TEST_CASE("thousands of random programs run on their plans without losing a byte") {
  std::size_t in_place = 0, views = 0, tight = 0, loose = 0;
  for (std::uint32_t seed = 0; seed < 4000; ++seed) {
    CAPTURE(seed);
    random_program const program(seed);
    arena_plan const plan = program.builder.plan();
    REQUIRE(text(plan.result()) == "ok");
    REQUIRE(text(plan.verify()) == "ok");
    aligned_buffer const buffer(plan.peak());
    std::vector<int> owner(plan.peak(), -1);
    REQUIRE(program.run_on(plan, owner, buffer.data()) == "ok");
    auto const s = plan.statistics();
    REQUIRE(s.most_live == program.lower_bound(plan));
    REQUIRE(s.peak >= s.most_live);
    REQUIRE(s.live_at_peak <= s.most_live);
    (s.peak == s.most_live ? tight : loose) += 1;
    for (auto const& p : plan.tensors()) {
      in_place += bool(p.in_place_of);
      views += bool(p.parent);
    }
    arena_plan const again = random_program(seed).builder.plan();
    REQUIRE(again.statistics() == s);
    for (std::size_t i = 0; i < plan.tensors().size(); ++i)
      REQUIRE(again.tensors()[i].offset == plan.tensors()[i].offset);
  }
  MESSAGE("in place: " << in_place << ", views: " << views << ", peak at the lower bound: " << tight << " of "
                       << tight + loose);
  CHECK(in_place > 1000);
  CHECK(views > 1000);
  CHECK(tight > 100);
  CHECK(loose > 100);
}

TEST_CASE("lifetimes that nest leave no fragmentation: the peak is the lower bound") {
  for (int depth : {1, 7, 100}) {
    arena_builder b;
    std::vector<tensor_id> saved;
    std::size_t sum = 0;
    for (int i = 0; i < depth; ++i) {
      std::size_t const bytes = std::size_t(1 + i * 37 % 1000);
      saved.push_back(b.tensor(bytes, {"saved", i}));
      b.op({}, {saved.back()}, "forward");
      sum += (bytes + 127) / 128 * 128;
    }
    for (int i = depth; i-- > 0;) b.op({saved[std::size_t(i)]}, {}, "backward");
    arena_plan const plan = b.plan();
    CHECK(plan.peak() == sum);
    CHECK(plan.statistics().most_live == sum);
    CHECK(plan.statistics().fragmentation() == 0.0);
    CHECK(plan.statistics().most_free_blocks == 0);
  }
}

TEST_CASE("a plan fits a budget exactly when its peak does") {
  std::mt19937 random(11);
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    arena_plan const plan = random_program(seed, 10).builder.plan();
    std::size_t const budget = random() % (2 * plan.peak() + 1);
    lanewise::arena memory;
    aligned_buffer const buffer(budget);
    REQUIRE(bool(plan.fits(budget)) == (plan.peak() <= budget));
    REQUIRE(bool(plan.bind(buffer.data(), budget, memory)) == (plan.peak() <= budget));
    REQUIRE(bool(plan.fits(plan.peak())));
    if (plan.peak() > 0) REQUIRE(plan.fits(plan.peak() - 1).code == status_code::out_of_memory);
  }
}

TEST_CASE("fit finds the largest size within the budget and never one beyond it") {
  auto const build = [](std::int64_t n) {
    arena_builder b;
    auto const x = b.input(std::size_t(100 * n), "x");
    auto const h = b.tensor(std::size_t(n * n), "scores"), y = b.tensor(std::size_t(100 * n), "y");
    b.op({x}, {h}, "scores");
    b.op({h}, {y}, "out");
    return b.plan();
  };
  std::mt19937 random(3);
  for (int i = 0; i < 500; ++i) {
    std::size_t const budget = random() % 400000;
    std::int64_t const low = 1 + random() % 20, high = low + random() % 800;
    lanewise::arena_fit const found = lanewise::fit(low, high, budget, build);
    CAPTURE(budget);
    CAPTURE(found.size);
    REQUIRE(bool(found.result) == (found.plan.peak() <= budget));
    REQUIRE(found.plan.peak() == build(found.size).peak());
    REQUIRE(found.size >= low);
    REQUIRE(found.size <= high);
    REQUIRE(found.plans <= 12);
    std::int64_t largest = low - 1;  // by trying all
    for (std::int64_t n = low; n <= high; ++n)
      if (build(n).peak() <= budget) largest = n;
    REQUIRE(bool(found.result) == (largest >= low));
    if (found.result) REQUIRE(found.size == largest);
  }
  CHECK(text(lanewise::fit(4, 9, 600, build).result) ==
        "plan needs 640 bytes, budget 600: 40 short at op 0 'scores'; the largest tensor there is 'x' of 400 bytes");
  CHECK(text(lanewise::fit(9, 4, 1000, build).result) == "fit: no sizes in [9, 4]");

  auto const faulty = [&](std::int64_t n) {
    if (n < 7) return build(n);
    arena_builder b;
    b.tensor(1, "unused");
    return b.plan();
  };
  CHECK(text(lanewise::fit(1, 9, std::numeric_limits<std::size_t>::max(), faulty).result) ==
        "tensor 'unused' of 1 bytes is named by no op");
  // A peak that does not grow with the size throughout: what is found fits all the same.
  auto const jagged = [&](std::int64_t n) { return build(n % 3 == 0 ? n / 2 + 1 : n); };
  for (std::size_t budget = 0; budget < 40000; budget += 997) {
    lanewise::arena_fit const found = lanewise::fit(1, 100, budget, jagged);
    REQUIRE(bool(found.result) == (found.plan.peak() <= budget));
  }
}

TEST_CASE("the adapters of the published shapes are factorised as their table says") {
  lokr::shape const two_b{.layers = 24, .hidden = 2048, .ffn = 6144, .q_heads = 16, .tokens = 8, .encoder_tokens = 8};
  auto const with = [](lokr::shape s, std::int64_t dim) {
    s.dim = dim;
    s.tokens = s.encoder_tokens = 8;
    return lokr::graph(s);
  };
  struct row {
    lokr::shape shape;
    std::int64_t dim, factorised;
    double millions;
  };
  for (row const& r : {row{{}, 512, 96, 228.6}, row{{}, 256, 224, 139.5}, row{{}, 128, 352, 73.9},
                       row{{}, 64, 352, 37.0}, row{two_b, 512, 0, 75.5}, row{two_b, 256, 72, 66.1}}) {
    CAPTURE(r.dim);
    lokr::graph const g = with(r.shape, r.dim);
    CHECK(g.factorised() == r.factorised);
    CHECK(double(g.adapter_parameters()) / 1e6 == doctest::Approx(r.millions).epsilon(0.05 / r.millions));
  }
}

TEST_CASE("a graph of 19,000 nodes with 224 factorised adapters is planned in well under a second") {
  lokr::graph const g{lokr::shape{}};
  CHECK(g.factorised() == 224);
  CHECK(g.nodes() > 18500);
  CHECK(g.nodes() < 19500);
  auto const start = std::chrono::steady_clock::now();
  arena_plan const plan = g.plan();
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  REQUIRE(text(plan.result()) == "ok");
  CHECK(text(plan.verify()) == "ok");
  auto const s = plan.statistics();
  MESSAGE(g.nodes() << " nodes, " << g.ops() << " ops: planned in " << 1e3 * seconds << " ms; peak "
                    << double(s.peak) / 0x1p20 << " MiB, " << 100 * s.fragmentation() << " % of it idle, at least "
                    << double(s.most_live) / 0x1p20 << " MiB needed; most free blocks " << s.most_free_blocks);
  CHECK(seconds < 1.0);
  CHECK(s.peak >= s.most_live);
  CHECK(s.fragmentation() < 0.01);

  std::size_t live = 0;  // at the peak, again, from the lifetimes alone
  std::vector<char> handed_over(plan.tensors().size());
  for (auto const& p : plan.tensors())
    if (p.in_place_of && p.first == plan.peak_op()) handed_over[p.in_place_of.index] = true;
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    auto const& p = plan.tensors()[i];
    if (!p.parent && p.first <= plan.peak_op() && plan.peak_op() <= p.last && !handed_over[i])
      live += (p.bytes + 127) / 128 * 128;
  }
  CHECK(live == s.live_at_peak);
  CHECK(lokr::graph{lokr::shape{}}.plan().statistics() == s);
}
