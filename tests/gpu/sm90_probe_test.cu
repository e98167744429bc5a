// What the Hopper kernels stand on, one piece at a time: descriptors of wgmma in every swizzle, K-major and MN-major,
// the box that the copy engine writes, the phases of an mbarrier. Where a byte of a tile lies is computed here by the
// sentence in tile/swizzled_tile.cuh. Products of small integers are exact, so every element must match bit for bit.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <lanewise/cuda/instruction/mbarrier.cuh>
#include <lanewise/cuda/instruction/tma.cuh>
#include <lanewise/cuda/instruction/warpgroup.cuh>
#include <lanewise/cuda/instruction/wgmma.cuh>
#include <lanewise/cuda/lane_map.hpp>
#include <lanewise/cuda/launch.cuh>
#include <lanewise/cuda/tensor_map.hpp>
#include <lanewise/cuda/tile/gemm.cuh>
#include <lanewise/cuda/tile/swizzled_tile.cuh>
#include <random>
#include <vector>

using namespace lanewise;

namespace {

/// Byte of element (row, column) of a tile of 16-bit elements.
template <class Tile>
__device__ int place(int row, int column) {
  int const slab = column / Tile::slab_columns, in_row = column % Tile::slab_columns * 2;
  int const chunk = in_row / 16 ^ row / (128 / Tile::span) % (Tile::span / 16);
  return slab * Tile::rows * Tile::span + row * Tile::span + chunk * 16 + in_row % 16;
}

template <class T>
struct device_array {
  T* data = nullptr;
  std::size_t count;
  explicit device_array(std::vector<T> const& x) : count(x.size()) {
    REQUIRE(cudaMalloc(&data, count * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(data, x.data(), count * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  device_array(device_array const&) = delete;
  ~device_array() { cudaFree(data); }
  std::vector<T> read() const {
    std::vector<T> x(count);
    REQUIRE(cudaMemcpy(x.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return x;
  }
};

/// C (64 x N) = A B, A from rows and B from rows [N][K] or columns [K][N] of swizzled tiles.
template <int span, bool b_is_rows, bool a_in_registers>
struct product {
  static constexpr char const* name = "wgmma probe";
  static constexpr int m = 64, columns = 96, depth = 80, threads = 128;
  using a_tile = gpu::swizzled_tile<bf16, m, depth, span>;
  using b_tile = std::conditional_t<b_is_rows, gpu::swizzled_tile<bf16, columns, depth, span>,
                                    gpu::swizzled_tile<bf16, depth, columns, span>>;
  static constexpr int shared_bytes = a_tile::bytes + b_tile::bytes;
  struct problem {
    bf16 const *a, *b;  ///< [m][depth], and [columns][depth] or [depth][columns]
    float* c;
  };
  struct signals {
    std::uint64_t unused;
  };
  problem const& p;
  a_tile a;
  b_tile b;

  __device__ product(problem const& p, std::uint32_t shared, signals&) : p(p), a{shared}, b{shared + a_tile::bytes} {}

  template <class Tile>
  __device__ static void fill(Tile to, bf16 const* from) {
    for (int i = int(threadIdx.x); i < Tile::rows * Tile::columns; i += threads)
      asm volatile("st.shared.b16 [%0], %1;" ::"r"(to.base + place<Tile>(i / Tile::columns, i % Tile::columns)),
                   "h"(from[i].bits)
                   : "memory");
  }
  __device__ void run() {
    using map = lane_maps::wgmma_m64;
    fill(a, p.a), fill(b, p.b);
    gpu::async_proxy_fence();
    __syncthreads();
    gpu::accumulators<1, columns / 8> c;
    gpu::clear<1, columns / 8>(c);
    gpu::pin(c[0]);
    auto const of_a = a.rows_from(0);
    auto const of_b = [&] {
      if constexpr (b_is_rows) return b.rows_from(0);
      else return b.all_columns();
    }();
    std::uint32_t registers[depth / 16][4];
    for (int k = 0; k < depth / 16; ++k)
      for (int r = 0; r < 4; ++r) {
        lane_maps::element const low = map::a(int(threadIdx.x), 2 * r), high = map::a(int(threadIdx.x), 2 * r + 1);
        registers[k][r] = p.a[low.row * depth + 16 * k + low.column].bits |
                          std::uint32_t(p.a[high.row * depth + 16 * k + high.column].bits) << 16;
      }
    gpu::pin(registers);
    gpu::wgmma_fence();
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
      std::uint64_t const operand = of_b + (b_is_rows ? b_tile::column_offset(k) : b_tile::row_offset(k));
      if constexpr (a_in_registers) gpu::wgmma<bf16, b_is_rows>(c[0], registers[k / 16], operand, k != 0);
      else gpu::wgmma<bf16, b_is_rows>(c[0], of_a + a_tile::column_offset(k), operand, k != 0);
    }
    gpu::wgmma_commit();
    gpu::wgmma_wait<0>(c[0]);
    for (int j = 0; j < columns / 8; ++j)
      for (int e = 0; e < 4; ++e) {
        lane_maps::element const at = map::c(int(threadIdx.x), e);
        p.c[at.row * columns + 8 * j + at.column] = c[0][j].x[e];
      }
  }
};

template <class K>
bool runs() {
  if (gpu::image_of<K>() == gpu::sm90a_image::runs) return true;
  MESSAGE("SKIP: needs a device of capability 9.0 and code for sm_90a");
  return false;
}

template <int span, bool b_is_rows, bool a_in_registers>
void check_product() {
  CAPTURE(span);
  CAPTURE(b_is_rows);
  CAPTURE(a_in_registers);
  using K = product<span, b_is_rows, a_in_registers>;
  if (!runs<K>()) return;
  std::mt19937 engine(7);
  std::uniform_int_distribution<int> draw(-8, 8);
  std::vector<bf16> a(K::m * K::depth), b(K::columns * K::depth);
  for (std::vector<bf16>* x : {&a, &b})
    for (bf16& e : *x) e = from_float<bf16>(float(draw(engine)));
  device_array<bf16> const on_a(a), on_b(b);
  device_array<float> const c(std::vector<float>(K::m * K::columns, std::nanf("")));
  typename K::problem p{on_a.data, on_b.data, c.data};
  REQUIRE(bool(gpu::start_blocks<K>(gpu::kernel_sm90a<K>, on_cuda{}, 1, p)));
  std::vector<float> const got = c.read();
  for (int i = 0; i < K::m; ++i)
    for (int j = 0; j < K::columns; ++j) {
      float right = 0;
      for (int k = 0; k < K::depth; ++k)
        right += to_float(a[i * K::depth + k]) * to_float(b[b_is_rows ? j * K::depth + k : k * K::columns + j]);
      REQUIRE(got[i * K::columns + j] == right);
    }
}

/// One box of a view to shared memory, and the tile row by row back to memory.
template <int span>
struct box {
  static constexpr char const* name = "TMA probe";
  static constexpr int threads = 128;
  using tile = gpu::swizzled_tile<bf16, 48, 72, span>;
  static constexpr int shared_bytes = tile::bytes;
  struct problem {
    CUtensorMap map;
    int row, head, batch;
    bf16* out;  ///< [rows][slabs slab_columns]
  };
  struct signals {
    std::uint64_t full;
  };
  problem const& p;
  tile t;
  signals& s;

  __device__ box(problem const& p, std::uint32_t shared, signals& s) : p(p), t{shared}, s(s) {}
  __device__ void run() {
    for (int i = int(threadIdx.x); i < tile::bytes / 16; i += threads)
      gpu::store_shared_4(t.base + 16 * i, ~0u, ~0u, ~0u, ~0u);
    gpu::async_proxy_fence();
    std::uint32_t const full = gpu::shared_address(&s.full);
    if (threadIdx.x == 0) {
      gpu::mbarrier_init(full, 1);
      gpu::mbarrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      gpu::mbarrier_arrive_expect(full, tile::bytes);
      for (int i = 0; i < tile::slabs; ++i)
        gpu::tma_load(t.slab(i), p.map, full, i * tile::slab_columns, p.row, p.head, p.batch);
    }
    gpu::mbarrier_wait(full, 0);
    constexpr int columns = tile::slabs * tile::slab_columns;
    for (int i = int(threadIdx.x); i < tile::rows * columns; i += threads)
      asm volatile("ld.shared.b16 %0, [%1];"
                   : "=h"(p.out[i].bits)
                   : "r"(t.base + place<tile>(i / columns, i % columns))
                   : "memory");
  }
};

template <int span>
void check_box() {
  CAPTURE(span);
  using K = box<span>;
  if (!runs<K>()) return;
  extents const e{2, 70, 3, 72};
  strides const st{70 * 3 * 80 + 16, 80, 70 * 80, 1};  // heads before the sequence, rows and batch elements apart
  std::vector<bf16> x(std::size_t(2 * st.batch + 100));
  for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = std::uint16_t(i % 32749 + 1);
  device_array<bf16> const memory(x);
  constexpr int columns = K::tile::slabs * K::tile::slab_columns;
  std::vector<bf16> const empty(std::size_t(K::tile::rows) * columns);
  device_array<bf16> const out(empty);
  for (int row : {0, 48}) {  // the second box passes the end of the sequence
    typename K::problem p{{}, row, 2, 1, out.data};
    REQUIRE(gpu::encode_tensor_map<typename K::tile>(p.map, view<bf16>(memory.data, e, st)));
    REQUIRE(bool(gpu::start_blocks<K>(gpu::kernel_sm90a<K>, on_cuda{}, 1, p)));
    std::vector<bf16> const got = out.read();
    for (int r = 0; r < K::tile::rows; ++r)
      for (int c = 0; c < columns; ++c) {
        bool const inside = row + r < 70 && c < 72;
        std::size_t const at = std::size_t(st.batch + (row + r) * st.sequence + 2 * st.heads + c);
        REQUIRE(got[std::size_t(r * columns + c)].bits == (inside ? x[at].bits : 0));
      }
  }
}

/// A warp hands numbers to another through a ring of words.
template <int stages>
struct hand_over {
  static constexpr char const* name = "mbarrier probe";
  static constexpr int threads = 64, shared_bytes = 0, numbers = 1000;
  using ring = gpu::ring<stages>;
  struct problem {
    int* out;  ///< [numbers + 2]
  };
  struct signals {
    std::uint64_t full[stages], empty[stages];
    int word[stages];
  };
  problem const& p;
  signals& s;

  __device__ hand_over(problem const& p, std::uint32_t, signals& s) : p(p), s(s) {}
  __device__ void run() {
    auto const at = [](std::uint64_t& x) { return gpu::shared_address(&x); };
    if (threadIdx.x == 0) {
      for (int i = 0; i < stages; ++i) gpu::mbarrier_init(at(s.full[i]), 1), gpu::mbarrier_init(at(s.empty[i]), 32);
      gpu::mbarrier_init_fence();
      p.out[numbers] = gpu::mbarrier_test(at(s.full[0]), 1);      // the phase before the first counts as ended
      p.out[numbers + 1] = gpu::mbarrier_test(at(s.full[0]), 0);  // the first has not
    }
    __syncthreads();
    for (std::uint32_t n = 0; n < numbers; ++n) {
      int const stage = ring::stage(n);
      if (threadIdx.x == 0) {
        gpu::mbarrier_wait(at(s.empty[stage]), ring::parity(n) ^ 1);
        s.word[stage] = int(7 * n + 1);
        gpu::mbarrier_arrive(at(s.full[stage]));
      }
      if (threadIdx.x >= 32) {
        gpu::mbarrier_wait(at(s.full[stage]), ring::parity(n));
        int const got = s.word[stage];
        if (threadIdx.x == 32) p.out[n] = got;
        gpu::mbarrier_arrive(at(s.empty[stage]));
      }
    }
  }
};

TEST_CASE("wgmma reads K-major and MN-major operands in every swizzle") {
  check_product<128, true, false>(), check_product<128, false, false>(), check_product<128, false, true>();
  check_product<64, true, false>(), check_product<64, false, true>();
  check_product<32, true, false>(), check_product<32, false, true>();
}

TEST_CASE("the copy engine writes a box of a strided view, and zeros past its ends") {
  check_box<128>(), check_box<64>(), check_box<32>();
}

template <int stages>
void check_ring() {
  using K = hand_over<stages>;
  if (!runs<K>()) return;
  std::vector<int> const unwritten(K::numbers + 2, -1);
  device_array<int> const out(unwritten);
  typename K::problem p{out.data};
  REQUIRE(bool(gpu::start_blocks<K>(gpu::kernel_sm90a<K>, on_cuda{}, 1, p)));
  std::vector<int> const got = out.read();
  for (int n = 0; n < K::numbers; ++n) REQUIRE(got[std::size_t(n)] == 7 * n + 1);
  CHECK(got[K::numbers] == 1);
  CHECK(got[K::numbers + 1] == 0);
}

TEST_CASE("a ring of mbarriers hands over every number once and in order") { check_ring<2>(), check_ring<3>(); }

}  // namespace
