// The lane maps against the tensor cores: integer-valued tiles go in through the A and B maps, one mma.sync runs, the
// result comes out through the C map. Products of small integers are exact, so every element must match bit for bit.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <lanewise/cuda/instruction/mma.cuh>
#include <lanewise/cuda/lane_map.hpp>
#include <random>
#include <vector>

using namespace lanewise;
using lane_maps::element;

namespace {

template <class E, class Map>
__global__ void probe_16(float const* a, float const* b, float* c) {
  int const lane = int(threadIdx.x);
  std::uint32_t fa[4], fb[2];
  float fc[4] = {};
  auto const at = [](float const* x, element e, int columns) { return x[e.row * columns + e.column]; };
  for (int r = 0; r < 4; ++r)
    fa[r] = gpu::pack(E{}, at(a, Map::a(lane, 2 * r), Map::k), at(a, Map::a(lane, 2 * r + 1), Map::k));
  for (int r = 0; r < 2; ++r)
    fb[r] = gpu::pack(E{}, at(b, Map::b(lane, 2 * r), Map::n), at(b, Map::b(lane, 2 * r + 1), Map::n));
  gpu::mma_m16n8k16(E{}, fc, fa, fb[0], fb[1]);
  for (int e = 0; e < 4; ++e) c[Map::c(lane, e).row * Map::n + Map::c(lane, e).column] = fc[e];
}

/// With `wrong_a` the A operand is filled through the C map, as if an accumulator could be used without a permutation.
__global__ void probe_tf32(float const* a, float const* b, float* c, bool wrong_a, bool round) {
  using map = lane_maps::m16n8k8_tf32;
  int const lane = int(threadIdx.x);
  std::uint32_t fa[4], fb[2];
  float fc[4] = {};
  auto const bits = [&](float x) { return round ? gpu::round_to_tf32(x) : bit_cast<std::uint32_t>(x); };
  for (int e = 0; e < 4; ++e) {
    element const x = wrong_a ? map::c(lane, e) : map::a(lane, e);
    fa[e] = bits(a[x.row * map::k + x.column]);
  }
  for (int e = 0; e < 2; ++e) fb[e] = bits(b[map::b(lane, e).row * map::n + map::b(lane, e).column]);
  gpu::mma_m16n8k8_tf32(fc, fa, fb[0], fb[1]);
  for (int e = 0; e < 4; ++e) c[map::c(lane, e).row * map::n + map::c(lane, e).column] = fc[e];
}

template <class Launch>
std::vector<float> on_device(std::vector<float> const& a, std::vector<float> const& b, Launch const& launch) {
  float *da, *db, *dc;
  std::vector<float> c(16 * 8);
  cudaMalloc(&da, a.size() * 4), cudaMalloc(&db, b.size() * 4), cudaMalloc(&dc, c.size() * 4);
  cudaMemcpy(da, a.data(), a.size() * 4, cudaMemcpyHostToDevice);
  cudaMemcpy(db, b.data(), b.size() * 4, cudaMemcpyHostToDevice);
  launch(da, db, dc);
  REQUIRE(cudaMemcpy(c.data(), dc, c.size() * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
  cudaFree(da), cudaFree(db), cudaFree(dc);
  return c;
}

std::vector<float> integers(int count, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> draw(-8, 8);
  std::vector<float> x(static_cast<std::size_t>(count));
  for (float& e : x) e = float(draw(engine));
  return x;
}

std::vector<float> product(std::vector<float> const& a, std::vector<float> const& b, int k) {
  std::vector<float> c(16 * 8);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      for (int x = 0; x < k; ++x) c[std::size_t(i * 8 + j)] += a[std::size_t(i * k + x)] * b[std::size_t(x * 8 + j)];
  return c;
}

}  // namespace

TEST_CASE("m16n8k16: bf16 and f16 products through the maps are exact") {
  using map = lane_maps::m16n8k16;
  for (unsigned seed = 1; seed < 20; ++seed) {
    auto const a = integers(16 * 16, seed), b = integers(16 * 8, seed + 100), c = product(a, b, 16);
    CHECK(on_device(a, b, [](auto... p) { probe_16<bf16, map><<<1, 32>>>(p...); }) == c);
    CHECK(on_device(a, b, [](auto... p) { probe_16<f16, map><<<1, 32>>>(p...); }) == c);
  }
}

TEST_CASE("m16n8k8 tf32: products through the maps are exact, and the C map is no A map") {
  for (unsigned seed = 1; seed < 20; ++seed) {
    auto const a = integers(16 * 8, seed), b = integers(8 * 8, seed + 100), c = product(a, b, 8);
    CHECK(on_device(a, b, [](auto... p) { probe_tf32<<<1, 32>>>(p..., false, true); }) == c);
    CHECK(on_device(a, b, [](auto... p) { probe_tf32<<<1, 32>>>(p..., true, true); }) != c);
  }
}

TEST_CASE("tf32 operands: the instruction truncates, round_to_tf32 rounds to nearest") {
  std::vector<float> a(16 * 8), b(8 * 8);
  for (int i = 0; i < 16; ++i) a[std::size_t(i * 8)] = 1.f + 0x1.8p-11f;  // three quarters of the way to 1 + 2^-10
  for (int j = 0; j < 8; ++j) b[std::size_t(j)] = 1.f;
  auto const truncated = on_device(a, b, [](auto... p) { probe_tf32<<<1, 32>>>(p..., false, false); });
  auto const rounded = on_device(a, b, [](auto... p) { probe_tf32<<<1, 32>>>(p..., false, true); });
  for (float x : truncated) CHECK(x == 1.f);
  for (float x : rounded) CHECK(x == 1.f + 0x1p-10f);
}
