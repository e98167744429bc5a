// What every call on the GPU keeps, beyond right numbers: the same bits every time, any strides, rows without keys,
// invisible NaNs, accumulation, labelled fallbacks, refusals with numbers.
#include "bf16_128_full.hpp"
#include "bf16_256_window.hpp"
#include "bf16_split_64_documents.hpp"
#include "f16_64_causal.hpp"
#include "f32_64_bias.hpp"
#include "parity.hpp"
#include "tf32_64_alibi.hpp"

using namespace testing;
using namespace lanewise;

namespace {

inline constexpr config causal = instances::f16_64_causal::c;
inline constexpr config biased = instances::f32_64_bias::c;

template <config C>
bool same_results(attention_case<C> const& a, attention_case<C> const& b) {
  return same_bits(a.o, b.o) && same_bits(a.lse, b.lse) && same_bits(a.d_q, b.d_q) && same_bits(a.d_k, b.d_k) &&
         same_bits(a.d_v, b.d_v);
}

float const not_a_number = std::nanf("");

}  // namespace

TEST_CASE("30 runs on two streams give the same bits") {
  cudaStream_t streams[2];
  for (cudaStream_t& s : streams) check_cuda(cudaStreamCreate(&s));
  sizes const s{2, 300, 333, 4, 2};
  attention_case<causal> first(s, 3);
  device_case<causal>(first).run(causal_bottom_right{});
  for (int run = 0; run < 30; ++run) {
    attention_case<causal> again(s, 3);
    device_case<causal> device(again);
    device.run(causal_bottom_right{}, device.forward_call(), device.backward_call(), streams[run % 2]);
    device.fetch();
    CHECK(same_results(first, again));
  }
  for (cudaStream_t s : streams) cudaStreamDestroy(s);
}

TEST_CASE("tf32 operands are rounded to nearest on every way to a product, not truncated") {
  constexpr config C = instances::tf32_64_alibi::c;
  float const between = 1.f + 0x1.8p-11f, nearest = 1.f + 0x1p-10f;  // three quarters of the way from 1 to the next
  sizes const s{1, 1, 1, 1, 1};                                      // one pair: P is 1
  variant_room room;
  auto const f = values<alibi>::of(s, room);
  attention_case<C> c(s, 1);
  for (auto* x : {&c.q, &c.k, &c.v, &c.d_o}) std::fill(x->begin(), x->end(), between);
  device_case<C>(c).run(f.device);
  for (float x : c.o) CHECK(x == nearest);
  for (float x : c.d_v) CHECK(x == nearest);
  CHECK(std::abs(c.lse[0] - 8.f * nearest * nearest) < 1e-5f);  // 64 products, scale 1/8
}

TEST_CASE("the gradient of a shared bias has the same bits every time") {
  sizes const s{1, 130, 70, 2, 1};
  std::vector<float> first;
  for (int run = 0; run < 10; ++run) {
    variant_room room;
    auto const f = values<bias>::of(s, room);
    attention_case<biased> c(s, 4);
    device_case<biased>(c).run(f.device);
    if (run == 0) first = room.fetched(0);
    CHECK(same_bits(first, room.fetched(0)));
  }
}

TEST_CASE("rows without keys: zeros, and either LSE rule is accepted by the backward") {
  attention_case<causal> c({1, 200, 90, 2, 2}, 5);  // the first 110 rows see nothing
  device_case<causal> device(c);
  device.run(causal_bottom_right{});
  auto const exact = c.expected(causal_bottom_right{});
  for (std::int64_t i = 0; i < 110 * 2 * 64; ++i) {
    REQUIRE(to_float(c.o[std::size_t(i)]) == 0.f);
    REQUIRE(to_float(c.d_q[std::size_t(i)]) == 0.f);
  }
  for (std::int64_t i = 0; i < 110 * 2; ++i) REQUIRE(c.lse[std::size_t(i)] == 0.f);
  attention_case<causal> other = c;
  for (std::int64_t i = 0; i < 110 * 2; ++i) other.lse[std::size_t(i)] = -infinity;
  device_case<causal> again(other);
  on_cuda const on{};
  device_memory const scratch(backward_workspace<causal>(target_of(on), c.q_size, c.k_size, causal_bottom_right{}));
  REQUIRE(bool(backward<causal>(on, again.backward_call(), causal_bottom_right{}, scratch)));
  again.fetch();
  CHECK(same_bits(c.d_q, other.d_q));
  CHECK(same_bits(c.d_k, other.d_k));
  CHECK(same_bits(c.d_v, other.d_v));
}

TEST_CASE("what no row sees reaches no output, NaN included") {
  sizes const s{1, 150, 90, 2, 1};
  attention_case<causal> clean(s, 6), dirty(s, 6);
  for (std::int64_t i = 0; i < 60 * 2 * 64; ++i)  // rows without keys
    dirty.q[std::size_t(i)] = dirty.d_o[std::size_t(i)] = from_float<f16>(not_a_number);
  device_case<causal>(clean).run(causal_bottom_right{});
  device_case<causal>(dirty).run(causal_bottom_right{});
  CHECK(all_finite(dirty.o));
  CHECK(same_results(clean, dirty));
}

TEST_CASE("keys and queries outside every document may hold NaN") {
  constexpr config C = instances::bf16_split_64_documents::c;
  sizes const s{1, 140, 150, 2, 1};
  variant_room room;
  auto const f = values<causal_documents>::of(s, room);
  attention_case<C> clean(s, 7), dirty(s, 7);
  for (std::int64_t i = (s.q - 2) * 2 * 64; i < s.q * 2 * 64; ++i)
    dirty.q[std::size_t(i)] = dirty.d_o[std::size_t(i)] = from_float<bf16>(not_a_number);
  for (std::int64_t i = (s.k - 1) * 64; i < s.k * 64; ++i)
    dirty.k[std::size_t(i)] = dirty.v[std::size_t(i)] = from_float<bf16>(not_a_number);
  device_case<C>(clean).run(f.device);
  device_case<C>(dirty).run(f.device);
  CHECK(all_finite(dirty.o));
  CHECK(same_results(clean, dirty));
}

// Above head dim 128 d_q has a kernel of its own: of a window of 20 keys, 60 keys that no row sees, then 61 rows that
// see no key, within tiles that are visited.
TEST_CASE("at head dim 256 what no row sees reaches no output, NaN included") {
  constexpr config C = instances::bf16_256_window::c;
  constexpr std::int64_t d = 256, heads = 2;
  for (sizes const s : {sizes{1, 90, 150, heads, 1}, sizes{1, 150, 70, heads, 1}}) {
    attention_case<C> clean(s, 8), dirty(s, 8);
    for (std::int64_t i = s.q * d; i < s.k * d; ++i)
      dirty.k[std::size_t(i)] = dirty.v[std::size_t(i)] = from_float<bf16>(not_a_number);
    for (std::int64_t i = (s.k + 19) * heads * d; i < s.q * heads * d; ++i)
      dirty.q[std::size_t(i)] = dirty.d_o[std::size_t(i)] = from_float<bf16>(not_a_number);
    device_case<C>(clean).run(capped_window{});
    device_case<C>(dirty).run(capped_window{});
    CHECK(all_finite(dirty.o));
    CHECK(same_results(clean, dirty));
  }
}

// A kernel that keeps what it subtracts in the exponent from key tile to key tile has to notice: scores that grow to
// 4, 60 and 600 times as much towards either end, and scores that are small but for every other stretch of 150 keys.
template <class Instance>
void growing_scores(sizes s) {
  constexpr config C = Instance::c;
  variant_room room;
  auto const f = values<typename Instance::variant>::of(s, room);
  for (float most : {4.f, 60.f, 600.f})
    for (int way = 0; way < 3; ++way) {
      CAPTURE(most);
      CAPTURE(way);
      attention_case<C> c(s, 17);
      for (std::int64_t j = 0; j < s.k; ++j) {
        float const along = float(way == 0 ? j : s.k - j) / float(s.k);
        float const by = way == 2 ? (j / 150 % 2 ? 1.f : most) : 1.f + most * along;
        for (std::int64_t b = 0; b < s.batch; ++b)
          for (std::int64_t x = 0; x < s.kv_heads * C.head_dim; ++x) {
            auto& k = c.k[std::size_t((b * s.k + j) * s.kv_heads * C.head_dim + x)];
            k = from_float<element<C>>(to_float(k) * by);
          }
      }
      check_on_device(c, f.host, f.device);
    }
}

TEST_CASE("scores that grow along the keys, or jump") {
  growing_scores<instances::bf16_128_full>({1, 200, 900, 2, 1});
  growing_scores<instances::f16_64_causal>({1, 300, 800, 2, 2});
  growing_scores<instances::bf16_256_window>({1, 600, 600, 2, 2});
}

TEST_CASE("interleaved q, k, v and heads before the sequence") {
  sizes const s{2, 100, 100, 2, 2};
  attention_case<causal> dense(s, 8), strided(s, 8);
  device_case<causal>(dense).run(causal_bottom_right{});
  extents const e = dense.q_size;
  std::vector<f16> qkv(std::size_t(3 * e.count()));  // [B, S, 3, H, D]
  std::int64_t const row = e.heads * e.head_dim;
  for (std::int64_t r = 0; r < e.batch * e.sequence; ++r)
    for (std::int64_t x = 0; x < row; ++x) {
      qkv[std::size_t(3 * r * row + x)] = dense.q[std::size_t(r * row + x)];
      qkv[std::size_t((3 * r + 1) * row + x)] = dense.k[std::size_t(r * row + x)];
      qkv[std::size_t((3 * r + 2) * row + x)] = dense.v[std::size_t(r * row + x)];
    }
  device_memory const memory = on_device(qkv);
  device_case<causal> device(strided);
  strides const st{3 * e.sequence * row, 3 * row, e.head_dim, 1};
  auto const slice = [&](int i) { return view<f16 const>(view<f16>(memory.as<f16>() + i * row, e, st)); };
  auto fwd = device.forward_call();
  auto bwd = device.backward_call();
  fwd.q = bwd.q = slice(0), fwd.k = bwd.k = slice(1), fwd.v = bwd.v = slice(2);
  auto const kernels = device.run(causal_bottom_right{}, fwd, bwd);
  device.fetch();
  CHECK(same_results(dense, strided));
  CHECK(std::string(kernels.first).find("16-byte") == std::string::npos);
  CHECK(std::string(kernels.first).find("strides") == std::string::npos);
}

TEST_CASE("rows that are not 16-byte aligned are copied by element, and the status says so") {
  sizes const s{1, 77, 130, 2, 2};
  attention_case<causal> shifted(s, 9);
  auto const exact = shifted.expected(causal_bottom_right{});
  auto const rounded = yardstick(shifted, causal_bottom_right{});
  device_case<causal> device(shifted);
  device_memory const q(device.q.bytes() + 16), d_q(device.d_q.bytes() + 16);
  check_cuda(cudaMemcpy(q.as<f16>() + 2, device.q.as<f16>(), device.q.bytes(), cudaMemcpyDeviceToDevice));
  auto fwd = device.forward_call();
  auto bwd = device.backward_call();
  fwd.q.data = bwd.q.data = q.as<f16>() + 2;
  bwd.d_q.data = d_q.as<f16>() + 2;
  auto const kernels = device.run(causal_bottom_right{}, fwd, bwd);
  check_cuda(cudaMemcpy(device.d_q.as<f16>(), d_q.as<f16>() + 2, device.d_q.bytes(), cudaMemcpyDeviceToDevice));
  device.fetch();
  auto const close = [](std::vector<f16> const& x, auto const& yard, auto const& right) {
    CHECK(relative_error(x, right) <= device_tolerance<causal, f16>(relative_error(yard, right)));
  };
  close(shifted.o, rounded.o, exact.o);
  close(shifted.d_q, rounded.d_q, exact.d_q);
  close(shifted.d_k, rounded.d_k, exact.d_k);
  close(shifted.d_v, rounded.d_v, exact.d_v);
  CHECK(std::string(kernels.first).find("not 16-byte aligned") != std::string::npos);
  CHECK(std::string(kernels.second).find("not 16-byte aligned") != std::string::npos);
}

TEST_CASE("accumulate adds to what is there") {
  sizes const s{1, 90, 60, 2, 1};
  variant_room room;
  auto const f = values<bias>::of(s, room);
  attention_case<biased> once(s, 10);
  device_case<biased>(once).run(f.device);
  std::vector<float> const d_b = room.fetched(0);
  attention_case<biased> twice = once;
  twice.accumulate = true;
  device_case<biased> device(twice);
  device.run(f.device);
  for (std::size_t i = 0; i < once.d_q.size(); ++i) REQUIRE(twice.d_q[i] == once.d_q[i] + once.d_q[i]);
  for (std::size_t i = 0; i < once.d_k.size(); ++i) REQUIRE(twice.d_k[i] == once.d_k[i] + once.d_k[i]);
  for (std::size_t i = 0; i < once.d_v.size(); ++i) REQUIRE(twice.d_v[i] == once.d_v[i] + once.d_v[i]);
  std::vector<float> const sum = room.fetched(0);
  for (std::size_t i = 0; i < sum.size(); ++i) REQUIRE(sum[i] == d_b[i] + d_b[i]);
}

// bf16 is rounded once more by the second sum; without it, d_k and d_v would be off by half.
TEST_CASE("accumulate adds to what is there where several blocks share a walk") {
  constexpr config c = instances::bf16_128_full::c;
  attention_case<c> once({2, 300, 150, 8, 2}, 10);
  device_case<c>(once).run(full{});
  attention_case<c> twice = once;
  twice.accumulate = true;
  device_case<c>(twice).run(full{});
  auto const doubled = [](auto const& x, auto const& of) {
    for (std::size_t i = 0; i < of.size(); ++i)
      REQUIRE(std::abs(to_float(x[i]) - 2 * to_float(of[i])) <= std::abs(to_float(of[i])) / 64);
  };
  doubled(twice.d_q, once.d_q), doubled(twice.d_k, once.d_k), doubled(twice.d_v, once.d_v);
}

TEST_CASE("sequences of length zero") {
  for (sizes const& s : {sizes{1, 0, 20, 2, 1}, sizes{1, 20, 0, 2, 1}, sizes{0, 20, 20, 2, 1}}) {
    attention_case<causal> c(s, 12);
    device_case<causal>(c).run(causal_bottom_right{});
    for (f16 x : c.o) CHECK(to_float(x) == 0.f);
    for (f16 x : c.d_q) CHECK(to_float(x) == 0.f);
    for (f16 x : c.d_k) CHECK(to_float(x) == 0.f);
    for (f16 x : c.d_v) CHECK(to_float(x) == 0.f);
  }
}

TEST_CASE("a workspace that is too small is refused with both numbers") {
  attention_case<causal> c({1, 20, 20, 2, 1}, 13);
  device_case<causal> device(c);
  std::size_t const needed =
      backward_workspace<causal>(target_of(on_cuda{}), c.q_size, c.k_size, causal_bottom_right{});
  device_memory const scratch(needed);
  status const s =
      backward<causal>(on_cuda{}, device.backward_call(), causal_bottom_right{}, {scratch.as<void>(), needed - 1});
  CHECK(s.code == status_code::bad_workspace);
  CHECK(std::string(s.message()).find(std::to_string(needed)) != std::string::npos);
}

// Row values 2 x 2 x 8 heads x 384 padded rows x 4 bytes; on wgmma 80 query tiles of 64 x 128 f32 and 321 words, and
// 12 key tiles of 128 keys, each seen by 4 heads x 5 query tiles, so that five shares leave 12 x 128 x 128 f32 each. On
// mma.sync 24 key tiles of 64 keys, each seen by 4 heads x 5 query tiles, so that five shares leave 2 x 333 x 2 x 128
// f32 each.
TEST_CASE("the workspace of a backward, to the byte") {
  constexpr config c = instances::bf16_128_full::c;
  extents const q{2, 300, 8, 128}, k{2, 333, 2, 128};
  std::size_t const rows = 49152, sums = 2621440, words = 1408, share = 681984, wide_share = 786432;
  CHECK(backward_workspace<c>(cuda_target{80, 108}, q, k, full{}) == rows + 2 * 5 * share);
  CHECK(backward_workspace<c>(cuda_target{80, 108}, q, k, full{}, {.d_v = false}) == rows + 5 * share);
  CHECK(backward_workspace<c>(cuda_target{80, 48}, q, k, full{}) == rows + 2 * 4 * share);
  CHECK(backward_workspace<c>(cuda_target{80, 24}, q, k, full{}) == rows);
  CHECK(backward_workspace<c>(cuda_target{90, 132}, q, k, full{}) == rows + sums + 2 * 5 * wide_share + words);
  CHECK(backward_workspace<c>(cuda_target{90, 132}, q, k, full{}, {.d_v = false}) ==
        rows + sums + 5 * wide_share + words);
  CHECK(backward_workspace<c>(cuda_target{90, 132}, q, k, full{}, {.d_q = false}) == rows + 2 * 5 * wide_share + words);
  CHECK(backward_workspace<c>(cuda_target{90, 1}, q, k, full{}) == rows + sums + words);
  constexpr config wide = instances::bf16_256_window::c;  // dQ has a kernel of its own and needs no sums; 24 key tiles
  CHECK(backward_workspace<wide>(cuda_target{90, 132}, {2, 300, 8, 256}, {2, 333, 2, 256}, capped_window{}) ==
        rows + 2 * 5 * std::size_t(24 * 64 * 256 * 4));
}

TEST_CASE("a backward says which kernel ran, and why not another") {
  bool const hopper = target_of(on_cuda{}).sm == 90;
  attention_case<causal> c({1, 70, 70, 2, 1}, 14);
  device_case<causal> device(c);
  std::string const kernel = device.run(causal_bottom_right{}).second;
  CHECK((kernel == "cuda sm90 wgmma f16" || kernel == "cuda sm80 mma f16: not compiled for sm_90a") == hopper);
  attention_case<instances::bf16_256_window::c> w({1, 70, 70, 2, 1}, 14);
  device_case<instances::bf16_256_window::c> wide(w);
  std::string const ran = wide.run(capped_window{}).second;
  CHECK((ran == "cuda sm90 wgmma bf16" || ran == "cuda sm80 mma bf16: not compiled for sm_90a") == hopper);
}
