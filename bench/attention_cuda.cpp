// Google Benchmark driver of the CUDA backend. shapes.hpp says what is measured; rows are those instances of
// tests/instances that bench/meson.build lists, on a grid of 16,384 tokens of 2048 numbers and on the training shapes.
//
// Tensors lie as in the trainer: q and k are parts of [B, S, Hq + Hkv, D], v of [B, S, Hq + 2 Hkv, D]. Before a row is
// timed, a short problem of its kind is compared with the f64 reference; a row that is wrong ends the program. A time
// lies between two CUDA events behind a fill of twice the L2 cache, so that every call finds it cold and its launches
// queued. The rows host/... are a warm call's time on the host, which may not exceed 5 us.
#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <lanewise/attention.hpp>
#include <lanewise/reference.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cuda_rows.hpp"

namespace bench {
namespace {

using namespace lanewise;

[[noreturn]] void stop(std::string const& why) {
  std::fprintf(stderr, "attention_cuda: %s\n", why.c_str());
  std::exit(1);
}
void require(cudaError_t error) {
  if (error != cudaSuccess) stop(cudaGetErrorString(error));
}
void require(status const& s) {
  if (!s) stop(s.message());
}

/// Host memory and its copy on the device, of 0xff bytes where no values are given.
template <class T>
class mirrored {
 public:
  explicit mirrored(std::vector<T> values) : host(std::move(values)) {
    require(cudaMalloc(&device_, bytes()));
    require(cudaMemcpy(device_, host.data(), bytes(), cudaMemcpyHostToDevice));
  }
  explicit mirrored(std::int64_t count) : host(std::size_t(std::max<std::int64_t>(count, 1))) {
    require(cudaMalloc(&device_, bytes()));
    require(cudaMemset(device_, 0xff, bytes()));
  }
  mirrored(mirrored const&) = delete;
  mirrored& operator=(mirrored const&) = delete;
  ~mirrored() { cudaFree(device_); }
  T* device() const { return static_cast<T*>(device_); }
  std::size_t bytes() const { return host.size() * sizeof(T); }
  void fetch() { require(cudaMemcpy(host.data(), device_, bytes(), cudaMemcpyDeviceToHost)); }

  std::vector<T> host;

 private:
  void* device_ = nullptr;
};

/// The tensors of one call and its scratch.
template <class Row>
struct problem {
  static constexpr config C = Row::c;
  using T = element<C>;
  using G = gradient<C>;
  static constexpr std::int64_t D = C.head_dim;
  shape_row s;
  extents q_size{s.batch, s.q_length, s.q_heads, D}, k_size{s.batch, s.k_length, s.kv_heads, D};
  extents lse_size{s.batch, s.q_length, s.q_heads, 1};
  std::int64_t qk_row = (s.q_heads + s.kv_heads) * D, qkv_row = (s.q_heads + 2 * s.kv_heads) * D;
  std::int64_t length = std::max(s.q_length, s.k_length), rows = s.batch * length;
  mirrored<T> qk{random_values<T>(rows * qk_row, 1)}, qkv{random_values<T>(rows * qkv_row, 2)};
  mirrored<T> d_o{random_values<T>(q_size.count(), 3)}, o{q_size.count()};
  mirrored<G> d_qk{rows * qk_row}, d_qkv{rows * qkv_row};
  mirrored<float> lse{lse_size.count()};
  mirrored<std::byte> forward_scratch{
      std::int64_t(forward_workspace<C>(target_of(on_cuda{}), q_size, k_size, variant_of<Row>()))};
  mirrored<std::byte> backward_scratch{
      std::int64_t(backward_workspace<C>(target_of(on_cuda{}), q_size, k_size, variant_of<Row>()))};

  template <class E>
  view<E> part(E* of, std::int64_t row, std::int64_t first_head, extents e) const {
    return {of + first_head * D, e, {length * row, row, D, 1}};
  }
  void forward() {
    require(lanewise::forward<C>(on_cuda{},
                                 {.q = part(qk.device(), qk_row, 0, q_size),
                                  .k = part(qk.device(), qk_row, s.q_heads, k_size),
                                  .v = part(qkv.device(), qkv_row, s.q_heads + s.kv_heads, k_size),
                                  .o = {o.device(), q_size},
                                  .lse = {lse.device(), lse_size}},
                                 variant_of<Row>(), {forward_scratch.device(), forward_scratch.bytes()}));
  }
  void backward() {
    require(lanewise::backward<C>(on_cuda{},
                                  {.q = part(qk.device(), qk_row, 0, q_size),
                                   .k = part(qk.device(), qk_row, s.q_heads, k_size),
                                   .v = part(qkv.device(), qkv_row, s.q_heads + s.kv_heads, k_size),
                                   .o = view<T>(o.device(), q_size),
                                   .lse = view<float>(lse.device(), lse_size),
                                   .d_o = view<T>(d_o.device(), q_size),
                                   .d_q = part(d_qk.device(), qk_row, 0, q_size),
                                   .d_k = part(d_qk.device(), qk_row, s.q_heads, k_size),
                                   .d_v = part(d_qkv.device(), qkv_row, s.q_heads + s.kv_heads, k_size)},
                                  variant_of<Row>(), {backward_scratch.device(), backward_scratch.bytes()}));
  }
  void run(bool back) { back ? backward() : forward(); }
};

/// Relative Frobenius error that a correct row may have: f32 5e-6, tf32 1e-3; 16-bit storage has a unit roundoff of
/// 2^-9 (bf16) or 2^-12 (f16), and P, dS and the result are rounded to it: four of them.
constexpr double bound_of(precision p) {
  switch (p) {
    case precision::f32:
    case precision::f32_split: return 5e-6;
    case precision::tf32: return 1e-3;
    case precision::f16: return 4 * 0x1p-12;
    default: return 4 * 0x1p-9;
  }
}

template <class Row>
void check_against_reference(shape_row s, std::string const& name) {
  s.batch = 1, s.q_length = std::min<std::int64_t>(s.q_length, 200);
  s.k_length = std::min<std::int64_t>(s.k_length, 200);
  s.q_heads = 2 * (s.q_heads / s.kv_heads), s.kv_heads = 2;
  problem<Row> p{s};
  p.forward(), p.backward();
  p.o.fetch(), p.d_qk.fetch(), p.d_qkv.fetch();
  using T = typename problem<Row>::T;
  auto const q = p.part(p.qk.host.data(), p.qk_row, 0, p.q_size);
  auto const k = p.part(p.qk.host.data(), p.qk_row, s.q_heads, p.k_size);
  auto const v = p.part(p.qkv.host.data(), p.qkv_row, s.q_heads + s.kv_heads, p.k_size);
  auto const exact = reference::attention(reference::problem<T>{.q = q,
                                                                .k = k,
                                                                .v = v,
                                                                .d_o = view<T>(p.d_o.host.data(), p.q_size),
                                                                .scale = double(default_scale(Row::c.head_dim))},
                                          variant_of<Row>());
  double const error =
      std::max({distance(view<T>(p.o.host.data(), p.q_size), exact.o),
                distance(p.part(p.d_qk.host.data(), p.qk_row, 0, p.q_size), exact.d_q),
                distance(p.part(p.d_qk.host.data(), p.qk_row, s.q_heads, p.k_size), exact.d_k),
                distance(p.part(p.d_qkv.host.data(), p.qkv_row, s.q_heads + s.kv_heads, p.k_size), exact.d_v)});
  if (!(error <= bound_of(Row::c.precision)))
    stop(name + ": relative error " + std::to_string(error) + " exceeds " + std::to_string(bound_of(Row::c.precision)));
}

/// Twice the L2 cache, filled before each call.
class cold_cache {
 public:
  cold_cache() {
    int device = 0, bytes = 0;
    require(cudaGetDevice(&device));
    require(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, device));
    bytes_ = 2 * std::size_t(bytes);
    require(cudaMalloc(&data_, bytes_));
  }
  ~cold_cache() { cudaFree(data_); }
  void fill() const { require(cudaMemsetAsync(data_, 0, bytes_)); }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

template <class Row>
void time_row(benchmark::State& state, shape_row const& s, bool backward) {
  problem<Row> p{s};
  cold_cache const cache;
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin)), require(cudaEventCreate(&end));
  p.forward(), p.run(backward);
  for (auto _ : state) {
    float milliseconds = 0;
    cache.fill();
    require(cudaEventRecord(begin));
    p.run(backward);
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    require(cudaEventElapsedTime(&milliseconds, begin, end));
    state.SetIterationTime(1e-3 * milliseconds);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  state.counters["tflops"] =
      benchmark::Counter(1e-12 * s.flop(Row::c.head_dim, backward), benchmark::Counter::kIsIterationInvariantRate);
  state.counters["live"] = s.live();
  state.counters["workspace_bytes"] = double(backward ? p.backward_scratch.bytes() : p.forward_scratch.bytes());
}

/// Time from the call to its return, the device being idle.
template <class Row>
void time_host(benchmark::State& state, bool backward) {
  constexpr double most = 5e-6;
  shape_row const s{"", 1, 2, 2, 64, 64, mask_of<typename Row::variant>};
  problem<Row> p{s};
  p.forward(), p.run(backward);
  std::vector<double> seconds;
  for (auto _ : state) {
    require(cudaDeviceSynchronize());
    auto const start = std::chrono::steady_clock::now();
    p.run(backward);
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    state.SetIterationTime(seconds.back());
  }
  std::nth_element(seconds.begin(), seconds.begin() + std::ptrdiff_t(seconds.size() / 2), seconds.end());
  double const median = seconds[seconds.size() / 2];
  state.counters["median_us"] = 1e6 * median;
  state.counters["within_5_us"] = median <= most;
}

template <class Row>
void add_row(shape_row const& s) {
  std::string const name = s.name(lanewise::name_of(Row::c.precision), Row::c.head_dim);
  check_against_reference<Row>(s, name);
  for (bool const backward : {false, true})
    benchmark::RegisterBenchmark(((backward ? "backward/" : "forward/") + name).c_str(),
                                 [=](benchmark::State& state) { time_row<Row>(state, s, backward); })
        ->Unit(benchmark::kMicrosecond)
        ->UseManualTime();
}

/// A row for each instance that fits the shape.
void add_shape(shape_row const& s, int head_dim) {
  bool found = false;
  cuda_rows::each([&]<class Row> {
    if (Row::c.head_dim != head_dim || mask_of<typename Row::variant> != s.kind) return;
    add_row<Row>(s);
    found = true;
  });
  if (!found) stop(s.name("any", head_dim) + ": no instance is listed in bench/meson.build");
}

void add_grid() {
  constexpr std::int64_t tokens = 16384, hidden = 2048;
  for (int const head_dim : {64, 128, 256})
    for (std::int64_t const length : {512, 2048, 8192})
      for (mask const kind : {mask::full, mask::causal})
        add_shape({"", tokens / length, hidden / head_dim, hidden / head_dim, length, length, kind}, head_dim);
}

void add_host_rows() {
  cuda_rows::each([]<class Row> {
    if (mask_of<typename Row::variant> != mask::full || Row::c.head_dim != 128) return;
    for (bool const backward : {false, true})
      benchmark::RegisterBenchmark(
          (std::string("host/") + (backward ? "backward/" : "forward/") + lanewise::name_of(Row::c.precision)).c_str(),
          [=](benchmark::State& state) { time_host<Row>(state, backward); })
          ->Unit(benchmark::kMicrosecond)
          ->UseManualTime();
  });
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  char interleave[] = "--benchmark_enable_random_interleaving=true", repeat[] = "--benchmark_repetitions=3";
  std::vector<char*> arguments{argv[0], interleave, repeat};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = int(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  CLI::App app{"Times lanewise's CUDA attention; takes every --benchmark_ option of Google Benchmark too"};
  std::string shapes;
  bool no_grid = false;
  app.add_option("--shapes", shapes, "add the training shapes of this file (bench/shapes.json)");
  app.add_flag("--no-grid", no_grid, "leave out the grid of 16,384 tokens");
  CLI11_PARSE(app, count, arguments.data());
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("SKIP: no CUDA device\n");
    return 0;
  }
  cudaDeviceProp chip;
  bench::require(cudaGetDeviceProperties(&chip, 0));
  benchmark::AddCustomContext("chip", chip.name);
  try {
    bench::add_host_rows();
    if (!no_grid) bench::add_grid();
    if (!shapes.empty())
      for (auto const& [shape, head_dim] : bench::training_shapes(shapes)) bench::add_shape(shape, head_dim);
    benchmark::RunSpecifiedBenchmarks();
  } catch (std::exception const& e) {
    bench::stop(e.what());
  }
}
