// The same bits every time: 30 runs of every instance beside work that competes for the multiprocessors, on two streams
// in turn; a d_o that arrives late on the same stream; and the tiles that a window visits.
#include <chrono>
#include <lanewise/cuda/sm80/tiles.hpp>
#include <lanewise/schedule.hpp>
#include <thread>

#include "bf16_128_full.hpp"
#include "bf16_256_window.hpp"
#include "bf16_split_64_documents.hpp"
#include "f16_128_window.hpp"
#include "f16_64_causal.hpp"
#include "f32_64_bias.hpp"
#include "f32_64_recorded.hpp"
#include "parity.hpp"
#include "tf32_64_alibi.hpp"

using namespace testing;
using namespace lanewise;

namespace {

struct streams {
  cudaStream_t of[3];
  streams() {
    for (cudaStream_t& s : of) check_cuda(cudaStreamCreate(&s));
  }
  ~streams() {
    for (cudaStream_t s : of) cudaStreamDestroy(s);
  }
};

/// Forwards of [1, 4096, 32, 128] bf16 on a stream of their own.
class competing_work {
 public:
  explicit competing_work(cudaStream_t stream) : stream_(stream), q_(on_device(stored<bf16>(normal(e_.count(), 5)))) {
    check_cuda(cudaMemset(o_.as<void>(), 0, o_.bytes()));
  }
  void enqueue(int calls) const {
    view<bf16> const q(q_.as<bf16>(), e_);
    for (int i = 0; i < calls; ++i) {
      status const s = forward<c>(on_cuda{reinterpret_cast<CUstream_st*>(stream_)},
                                  {.q = q, .k = q, .v = q, .o = {o_.as<bf16>(), e_}}, full{});
      REQUIRE_MESSAGE(bool(s), s.message());
    }
  }

 private:
  static constexpr config c = instances::bf16_128_full::c;
  extents e_{1, 4096, 32, 128};
  cudaStream_t stream_;
  device_memory q_, o_{std::size_t(e_.count()) * 2};
};

/// 30 runs of one instance against the first, which runs alone.
template <config C, class F>
void runs_agree(competing_work const& load, streams const& on, sizes s) {
  attention_case<C> first(s, 3);
  variant_room room;
  auto const f = values<F>::of(s, room);
  device_case<C>(first).run(f.device);
  std::vector<float> const parameter = parameter_count < bound < F >>> 0 ? room.fetched(0) : std::vector<float>{};
  attention_case<C> again = first;
  for (int run = 0; run < 30; ++run) {
    CAPTURE(run);
    again.clear();
    device_case<C> device(again);
    on_cuda const where{reinterpret_cast<CUstream_st*>(on.of[run % 2])};
    device_memory const scratch(backward_workspace<C>(target_of(where), again.q_size, again.k_size, f.device)),
        room_of_forward(forward_workspace<C>(target_of(where), again.q_size, again.k_size, f.device));
    load.enqueue(4);
    status s1 = forward<C>(where, device.forward_call(), f.device, room_of_forward);
    if (s1) s1 = backward<C>(where, device.backward_call(), f.device, scratch);
    REQUIRE_MESSAGE(bool(s1), s1.message());
    check_cuda(cudaDeviceSynchronize());
    device.fetch();
    REQUIRE(same_bits(first.o, again.o));
    REQUIRE(same_bits(first.lse, again.lse));
    REQUIRE(same_bits(first.d_q, again.d_q));
    REQUIRE(same_bits(first.d_k, again.d_k));
    REQUIRE(same_bits(first.d_v, again.d_v));
    if (!parameter.empty()) REQUIRE(same_bits(parameter, room.fetched(0)));
  }
}

/// [q, keys] bytes that are 1 where some tile of this tiling that the window does not leave empty lies.
void mark_visited(std::vector<unsigned char>& seen, window const& f, tiling const& t) {
  for (std::int32_t i = 0; i < t.q_tiles(); ++i)
    for (std::int32_t j = 0; j < t.k_tiles(); ++j) {
      block const b = t.tile(0, 0, i, j);
      if (cover_of(f, b) == cover::empty) continue;
      for (std::int32_t q = b.q_begin; q < b.q_end; ++q)
        std::fill(seen.begin() + std::ptrdiff_t(q) * t.k + b.k_begin, seen.begin() + std::ptrdiff_t(q) * t.k + b.k_end,
                  (unsigned char)(1));
    }
}

}  // namespace

// flash-attention issue 2244: d_q of a deterministic backward differed in 29 of 30 runs.
TEST_CASE("30 runs beside competing work, on two streams in turn") {
  streams const on;
  competing_work const load(on.of[2]);
  using namespace instances;
  SUBCASE("bf16") { runs_agree<bf16_128_full::c, bf16_128_full::variant>(load, on, {2, 300, 333, 8, 2}); }
  SUBCASE("bf16, many key tiles in turn") {
    runs_agree<bf16_128_full::c, bf16_128_full::variant>(load, on, {1, 1500, 2100, 8, 2});
  }
  SUBCASE("f16, causal, more blocks than multiprocessors") {
    runs_agree<f16_64_causal::c, f16_64_causal::variant>(load, on, {2, 1300, 1300, 8, 8});
  }
  SUBCASE("bf16, head dim 256") {
    runs_agree<bf16_256_window::c, bf16_256_window::variant>(load, on, {1, 300, 333, 4, 2});
  }
  SUBCASE("bf16_split") {
    runs_agree<bf16_split_64_documents::c, bf16_split_64_documents::variant>(load, on, {2, 300, 333, 4, 2});
  }
  SUBCASE("f16") { runs_agree<f16_64_causal::c, f16_64_causal::variant>(load, on, {2, 300, 333, 8, 2}); }
  SUBCASE("f16, window") { runs_agree<f16_128_window::c, f16_128_window::variant>(load, on, {2, 300, 333, 8, 2}); }
  SUBCASE("f16, five keys: a walk shared by many blocks") {
    runs_agree<f16_64_causal::c, f16_64_causal::variant>(load, on, {1, 3000, 5, 8, 2});
  }
  SUBCASE("bf16, five keys: a walk shared by many blocks") {
    runs_agree<bf16_128_full::c, bf16_128_full::variant>(load, on, {1, 3000, 5, 8, 2});
  }
  SUBCASE("bf16, the last of 150 key tiles shared") {
    runs_agree<bf16_128_full::c, bf16_128_full::variant>(load, on, {5, 700, 1900, 8, 2});
  }
  SUBCASE("tf32, five keys: a walk shared by many blocks") {
    runs_agree<tf32_64_alibi::c, tf32_64_alibi::variant>(load, on, {1, 3000, 5, 8, 2});
  }
  SUBCASE("f32, bias") { runs_agree<f32_64_bias::c, f32_64_bias::variant>(load, on, {1, 200, 133, 4, 2}); }
  SUBCASE("tf32, alibi") { runs_agree<tf32_64_alibi::c, tf32_64_alibi::variant>(load, on, {2, 300, 333, 4, 2}); }
}

// flash-attention issue 2481: the backward's first kernel read d_o before the kernel that wrote it had ended. Here d_o
// arrives by a copy that the stream makes after 50 ms.
TEST_CASE("a d_o that arrives late on the same stream") {
  constexpr config c = instances::f16_64_causal::c;
  streams const on;
  cudaStream_t const stream = on.of[0];
  attention_case<c> prompt({1, 200, 200, 4, 2}, 8), late = prompt;
  device_case<c>(prompt).run(causal_bottom_right{});
  device_case<c> device(late);
  device_memory const d_o = on_device(late.d_o);
  check_cuda(cudaMemset(device.d_o.as<void>(), 0xff, device.d_o.bytes()));
  device_memory const scratch(
      backward_workspace<c>(target_of(on_cuda{}), late.q_size, late.k_size, causal_bottom_right{}));
  on_cuda const where{reinterpret_cast<CUstream_st*>(stream)};
  REQUIRE(bool(forward<c>(where, device.forward_call(), causal_bottom_right{})));
  check_cuda(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr));
  check_cuda(cudaMemcpyAsync(device.d_o.as<void>(), d_o.as<void>(), d_o.bytes(), cudaMemcpyDeviceToDevice, stream));
  REQUIRE(bool(backward<c>(where, device.backward_call(), causal_bottom_right{}, scratch)));
  check_cuda(cudaStreamSynchronize(stream));
  device.fetch();
  CHECK(same_bits(prompt.d_q, late.d_q));
  CHECK(same_bits(prompt.d_k, late.d_k));
  CHECK(same_bits(prompt.d_v, late.d_v));
}

TEST_CASE("a window of 129 keys a side over 3000 tokens: tiles visited are those that the schedule counts") {
  constexpr config c = instances::f32_64_recorded::c;
  constexpr std::int32_t n = 3000;
  window const inner{128, 128};
  attention_case<c> x({1, n, n, 1, 1});
  device_case<c> device(x);
  device_memory const seen_there{std::size_t(n) * n};
  recorded_window const f{inner, seen_there.as<unsigned char>(), n};
  std::vector<unsigned char> seen(std::size_t(n) * n);
  auto const clear = [&] { check_cuda(cudaMemset(seen_there.as<void>(), 0, seen_there.bytes())); };
  auto const fetch = [&] {
    check_cuda(cudaDeviceSynchronize());
    seen_there.read(seen);
  };

  clear();
  REQUIRE(bool(forward<c>(on_cuda{}, device.forward_call(), f)));
  fetch();
  constexpr auto forward_tile = sm80::forward_shape<c, tuning{}, recorded_window>();
  tile_counts const counted = count_tiles(inner, {1, 1, n, n}, forward_tile.rows, forward_tile.columns);
  std::vector<unsigned char> right(seen.size());
  mark_visited(right, inner, {n, n, forward_tile.rows, forward_tile.columns});
  CHECK(seen == right);
  std::int64_t live = 0;
  for (std::int32_t q = 0; q < n; ++q) live += std::min(n, q + 129) - std::max(0, q - 128);
  MESSAGE("forward: ", counted.visited, " of ", counted.total, " tiles, ", 100. * double(live) / n / n,
          " % of pairs live");
  CHECK(counted.visited < counted.total / 5);

  clear();
  device_memory const scratch(backward_workspace<c>(target_of(on_cuda{}), x.q_size, x.k_size, f));
  REQUIRE(bool(backward<c>(on_cuda{}, device.backward_call(), f, scratch)));
  fetch();
  constexpr auto keys = sm80::key_gradient_shape<c, tuning{}, recorded_window>();
  constexpr auto queries = sm80::query_gradient_shape<c, tuning{}, recorded_window>();
  std::fill(right.begin(), right.end(), (unsigned char)(0));
  mark_visited(right, inner, {n, n, keys.columns, keys.rows});
  mark_visited(right, inner, {n, n, queries.rows, queries.columns});
  CHECK(seen == right);
}
