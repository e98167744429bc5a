// Google Benchmark driver of the CPU backend, with the softmax chain on OpenBLAS and the processor's FMA rate beside
// it. shapes.hpp says what is measured.
//
// Tensors lie as in the trainer: q and k are parts of [B, S, Hq + Hkv, D], v of [B, S, Hq + 2 Hkv, D]. Before a row is
// timed, a short problem of its kind is compared with the f64 reference; a row that is wrong ends the program.
// bench/summarise.py reads the JSON and says which bars hold.
#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <lanewise/attention_cpu.hpp>
#include <lanewise/reference.hpp>
#include <lanewise/variants/causal.hpp>
#include <lanewise/variants/window.hpp>
#include <memory>
#include <string>
#include <vector>

#include "fma_peak.hpp"
#include "openblas_chain.hpp"
#include "shapes.hpp"

namespace bench {
namespace {

using namespace lanewise;

/// The tensors of one call and its scratch.
template <config C, class F>
struct problem {
  using T = element<C>;
  shape_row s;
  thread_pool& pool;
  extents q_size{s.batch, s.q_length, s.q_heads, C.head_dim}, k_size{s.batch, s.k_length, s.kv_heads, C.head_dim};
  extents lse_size{s.batch, s.q_length, s.q_heads, 1};
  std::int64_t qk_row = (s.q_heads + s.kv_heads) * C.head_dim, qkv_row = (s.q_heads + 2 * s.kv_heads) * C.head_dim;
  std::int64_t rows = s.batch * std::max(s.q_length, s.k_length);
  std::vector<T> qk = random_values<T>(rows * qk_row, 1), qkv = random_values<T>(rows * qkv_row, 2);
  std::vector<T> o_data = std::vector<T>(std::size_t(q_size.count())), d_o_data = random_values<T>(q_size.count(), 3);
  std::vector<T> d_qk = std::vector<T>(qk.size()), d_qkv = std::vector<T>(qkv.size());
  std::vector<float> lse_data = std::vector<float>(std::size_t(lse_size.count()));
  std::size_t forward_bytes = forward_workspace<C, tuning{}, F>(target_of(on_cpu{pool}), q_size, k_size);
  std::size_t backward_bytes = backward_workspace<C, tuning{}, F>(target_of(on_cpu{pool}), q_size, k_size, variant());
  std::vector<std::byte> memory = std::vector<std::byte>(std::max(forward_bytes, backward_bytes) + workspace_alignment);

  static F variant() {
    if constexpr (std::is_same_v<F, window>) return {128, 128};
    else return {};
  }
  view<T> part(std::vector<T>& of, std::int64_t row, std::int64_t first_head, extents e) const {
    return {of.data() + first_head * C.head_dim, e, {std::max(s.q_length, s.k_length) * row, row, C.head_dim, 1}};
  }
  view<T> q() { return part(qk, qk_row, 0, q_size); }
  view<T> k() { return part(qk, qk_row, s.q_heads, k_size); }
  view<T> v() { return part(qkv, qkv_row, s.q_heads + s.kv_heads, k_size); }
  view<T> o() { return {o_data.data(), q_size}; }
  view<T> d_o() { return {d_o_data.data(), q_size}; }
  view<T> d_q() { return part(d_qk, qk_row, 0, q_size); }
  view<T> d_k() { return part(d_qk, qk_row, s.q_heads, k_size); }
  view<T> d_v() { return part(d_qkv, qkv_row, s.q_heads + s.kv_heads, k_size); }
  view<float> lse() { return {lse_data.data(), lse_size}; }
  workspace scratch(std::size_t bytes) {
    auto const address = reinterpret_cast<std::uintptr_t>(memory.data());
    return {memory.data() + (workspace_alignment - address % workspace_alignment) % workspace_alignment, bytes};
  }

  void require(status const& st) {
    if (st) return;
    std::fprintf(stderr, "attention_cpu: %s\n", st.message());
    std::exit(1);
  }
  void forward() {
    require(lanewise::forward<C>(on_cpu(pool), {.q = q(), .k = k(), .v = v(), .o = o(), .lse = lse()}, variant(),
                                 scratch(forward_bytes)));
  }
  void backward() {
    require(lanewise::backward<C>(
        on_cpu(pool),
        {.q = q(), .k = k(), .v = v(), .o = o(), .lse = lse(), .d_o = d_o(), .d_q = d_q(), .d_k = d_k(), .d_v = d_v()},
        variant(), scratch(backward_bytes)));
  }
};

/// The arm that is timed: lanewise, or the chain (f32, full and causal alone).
enum class arm { lanewise, chain };

template <config C, class F>
struct runner {
  problem<C, F> p;
  std::unique_ptr<openblas_chain> chain;

  runner(shape_row const& s, thread_pool& pool, arm which) : p{s, pool} {
    if constexpr (std::is_same_v<element<C>, float>)
      if (which == arm::chain)
        chain = std::make_unique<openblas_chain>(pool, p.q(), p.k(), p.v(), s.kind == mask::causal);
  }
  void forward() {
    if constexpr (std::is_same_v<element<C>, float>)
      if (chain) return chain->forward(p.o());
    p.forward();
  }
  void backward() {
    if constexpr (std::is_same_v<element<C>, float>)
      if (chain) return chain->backward(p.d_o(), p.d_q(), p.d_k(), p.d_v());
    p.backward();
  }
};

/// Relative Frobenius error against f64 of a short problem of the row's kind. Bounds: f32 5e-6; 16-bit storage has a
/// unit roundoff of 2^-9 (bf16) or 2^-12 (f16), and P, dS and the result are rounded to it: four of them.
template <config C, class F>
void check_against_reference(shape_row s, thread_pool& pool, arm which, std::string const& name) {
  s.q_length = std::min<std::int64_t>(s.q_length, 200), s.k_length = std::min<std::int64_t>(s.k_length, 200);
  runner<C, F> r(s, pool, which);
  r.forward(), r.backward();
  auto& p = r.p;
  auto const exact = reference::attention(
      reference::problem<element<C>>{
          .q = p.q(), .k = p.k(), .v = p.v(), .d_o = p.d_o(), .scale = double(default_scale(C.head_dim))},
      p.variant());
  double const bound = C.precision == precision::f32 ? 5e-6 : C.precision == precision::bf16 ? 4 * 0x1p-9 : 4 * 0x1p-12;
  double const error = std::max({distance(p.o(), exact.o), distance(p.d_q(), exact.d_q), distance(p.d_k(), exact.d_k),
                                 distance(p.d_v(), exact.d_v)});
  if (error <= bound) return;
  std::fprintf(stderr, "attention_cpu: %s: relative error %.2e exceeds %.2e\n", name.c_str(), error, bound);
  std::exit(1);
}

template <config C, class F>
void time_row(benchmark::State& state, shape_row const& s, thread_pool& pool, arm which, bool backward) {
  runner<C, F> r(s, pool, which);
  r.forward();  // also touches every page
  if (backward) r.backward();
  for (auto _ : state) {
    if (backward) r.backward();
    else r.forward();
  }
  double const flop = s.flop(C.head_dim, backward);
  state.counters["gflops"] = benchmark::Counter(flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["live"] = s.live();
  state.counters["saved_bytes"] = double(r.chain ? r.chain->saved_bytes() : r.p.lse_data.size() * sizeof(float));
  state.counters["workspace_bytes"] = double(r.chain    ? (backward ? r.chain->scratch_bytes() : 0)
                                             : backward ? r.p.backward_bytes
                                                        : r.p.forward_bytes);
}

benchmark::internal::Benchmark* usual(benchmark::internal::Benchmark* b) {
  return b->Unit(benchmark::kMillisecond)->UseRealTime()->MeasureProcessCPUTime();
}

template <config C, class F>
void add_rows(shape_row const& s, thread_pool& pool, char const* type) {
  for (arm const which : {arm::lanewise, arm::chain}) {
    if (which == arm::chain && (C.precision != precision::f32 || s.kind == mask::window)) continue;
    std::string const tail = s.name(type, C.head_dim);
    double const chain_bytes = 4.0 * double(s.batch * s.q_heads + pool.size()) * double(s.q_length * s.k_length);
    if (which == arm::chain && chain_bytes > 4e9) {
      std::fprintf(stderr, "SKIP chain/%s: it would keep %.1f GB\n", tail.c_str(), chain_bytes * 1e-9);
      continue;
    }
    check_against_reference<C, F>(s, pool, which, tail);
    for (bool const backward : {false, true})
      usual(benchmark::RegisterBenchmark(
          ((which == arm::chain ? "chain/" : "") + std::string(backward ? "backward/" : "forward/") + tail).c_str(),
          [=, &pool](benchmark::State& state) { time_row<C, F>(state, s, pool, which, backward); }));
  }
}

template <config C>
void add_masks(shape_row const& s, thread_pool& pool, char const* type) {
  switch (s.kind) {
    case mask::full: return add_rows<C, full>(s, pool, type);
    case mask::causal: return add_rows<C, causal_top_left>(s, pool, type);
    case mask::window: return add_rows<C, window>(s, pool, type);
  }
}

template <int D>
void add_grid(thread_pool& pool) {
  constexpr std::int64_t hidden = 512;
  for (std::int64_t const length : {1024, 4096})
    for (mask const kind : {mask::full, mask::causal}) {
      shape_row const s{"", 1, hidden / D, hidden / D, length, length, kind};
      add_masks<config{.head_dim = D}>(s, pool, "f32");
      add_masks<config{.head_dim = D, .precision = precision::bf16}>(s, pool, "bf16");
      add_masks<config{.head_dim = D, .precision = precision::f16}>(s, pool, "f16");
    }
}

/// Training shapes with two key/value heads and their query heads, so that a row takes at most a few seconds.
void add_training(std::string const& path, thread_pool& pool) {
  for (auto [s, head_dim] : training_shapes(path)) {
    s.q_heads = 2 * (s.q_heads / s.kv_heads), s.kv_heads = 2;
    if (head_dim == 64) add_masks<config{.head_dim = 64}>(s, pool, "f32");
    else if (head_dim == 128) add_masks<config{.head_dim = 128}>(s, pool, "f32");
    else throw std::runtime_error(s.id + ": head_dim " + std::to_string(head_dim) + " is not compiled in (64, 128)");
  }
}

void add_peak(thread_pool& pool) {
  fma_loop const loop = widest_fma_loop();
  usual(
      benchmark::RegisterBenchmark((std::string("peak/fma/") + loop.name).c_str(), [=, &pool](benchmark::State& state) {
        constexpr std::int64_t rounds = 1 << 20;
        for (auto _ : state) pool.run([&](int) { benchmark::DoNotOptimize(loop.run(rounds)); });
        state.counters["gflops"] = benchmark::Counter(1e-9 * loop.flop_per_round * rounds * pool.size(),
                                                      benchmark::Counter::kIsIterationInvariantRate);
      }));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  // Defaults first, so that the command line overrides them.
  char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=3";
  std::vector<char*> arguments{argv[0], interleave, repeat};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  CLI::App app{"Times lanewise's CPU attention; takes every --benchmark_ option of Google Benchmark too"};
  int threads = int(std::thread::hardware_concurrency());
  std::string shapes;
  app.add_option("--threads", threads, "threads of every arm")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--shapes", shapes, "add the training shapes of this file (bench/shapes.json)");
  CLI11_PARSE(app, count, arguments.data());
  benchmark::AddCustomContext("threads", std::to_string(threads));
  try {
    lanewise::thread_pool pool(threads);
    bench::add_peak(pool);
    bench::add_grid<64>(pool);
    bench::add_grid<128>(pool);
    if (!shapes.empty()) bench::add_training(shapes, pool);
    benchmark::RunSpecifiedBenchmarks();
  } catch (std::exception const& e) {
    std::fprintf(stderr, "attention_cpu: %s\n", e.what());
    return 1;
  }
}
