// Strides, offsets and counts that broke other libraries, on a device. Each call must agree in every bit with a dense,
// small one where the same kernels ran, by their labels. Rows that need more memory than the device has free say so and
// are left out.
#include "bf16_128_full.hpp"
#include "bf16_split_64_documents.hpp"
#include "f16_64_causal.hpp"
#include "parity.hpp"

using namespace testing;
using namespace lanewise;

namespace {

inline constexpr config dense_bf16 = instances::bf16_128_full::c;
inline constexpr config causal = instances::f16_64_causal::c;
constexpr std::int64_t beyond = std::int64_t(1) << 31;  // elements

/// A tensor of any strides on the device, every byte 0xff between and in its rows until they are filled.
template <class T>
class laid_out {
 public:
  laid_out(extents e, strides s)
      : memory_(std::size_t((e.batch - 1) * s.batch + (e.sequence - 1) * s.sequence + (e.heads - 1) * s.heads +
                            e.head_dim) *
                sizeof(T)),
        all_(memory_.template as<T>(), e, s) {}
  operator view<T>() const { return all_; }
  operator view<T const>() const requires(!std::is_const_v<T>) { return all_; }

  /// Takes the values of a dense tensor of the same extents.
  void fill(std::vector<T> const& from) {
    each_piece([&](T* piece, std::int64_t at, std::int64_t count) {
      check_cuda(cudaMemcpyAsync(piece, from.data() + at, std::size_t(count) * sizeof(T), cudaMemcpyHostToDevice));
    });
    check_cuda(cudaDeviceSynchronize());
  }
  /// The values in the order of a dense tensor of the same extents.
  std::vector<T> dense() const {
    std::vector<T> to(std::size_t(all_.size.count()));
    each_piece([&](T* piece, std::int64_t at, std::int64_t count) {
      check_cuda(cudaMemcpyAsync(to.data() + at, piece, std::size_t(count) * sizeof(T), cudaMemcpyDeviceToHost));
    });
    check_cuda(cudaDeviceSynchronize());
    return to;
  }
  void check_fence() const { memory_.check(); }

 private:
  /// visit(place, dense index, count): all heads at once where they are contiguous.
  template <class Visit>
  void each_piece(Visit const& visit) const {
    bool const whole = all_.stride.heads == all_.size.head_dim;
    for (std::int64_t b = 0; b < all_.size.batch; ++b)
      for (std::int64_t s = 0; s < all_.size.sequence; ++s)
        for (std::int64_t h = 0; h < (whole ? 1 : all_.size.heads); ++h)
          visit(all_.data + b * all_.stride.batch + s * all_.stride.sequence + h * all_.stride.heads,
                ((b * all_.size.sequence + s) * all_.size.heads + h) * all_.size.head_dim,
                (whole ? all_.size.heads : 1) * all_.size.head_dim);
  }

  device_memory memory_;
  view<T> all_;
};

/// Strides of each tensor of a call.
struct layout {
  strides q, k, v, o, d_o, d_q, d_k, d_v, lse;
};
constexpr layout dense_layout(extents q, extents k) {
  strides const of_q = dense(q), of_k = dense(k);
  return {of_q, of_k, of_k, of_q, of_q, of_q, of_k, of_k, dense({q.batch, q.sequence, q.heads, 1})};
}
constexpr strides head_major(extents e) {
  return {e.heads * e.sequence * e.head_dim, e.head_dim, e.sequence * e.head_dim, 1};
}

/// False, with the numbers, where the device has less memory free.
bool enough_memory(double bytes) {
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  if (double(free) >= bytes) return true;
  MESSAGE("SKIP: needs ", bytes / 0x1p30, " GiB of device memory, ", double(free) / 0x1p30, " are free");
  return false;
}

using kernel_names = std::pair<char const*, char const*>;  ///< of the forward and the backward

/// Equal bits where the same kernels ran. Another sums in another order: then within one spacing of the type.
template <class T>
bool agree(std::vector<T> const& x, std::vector<T> const& y, bool same_kernels) {
  if (same_kernels) return same_bits(x, y);
  std::vector<double> right(y.size());
  std::transform(y.begin(), y.end(), right.begin(), [](T e) { return double(to_float(e)); });
  return relative_error(x, right) <= epsilon_of<T>;
}

/// Runs f on tensors laid out as l whose values are x's, which has been run by the kernels `before`.
template <config C, class F>
void check_same(attention_case<C> const& x, kernel_names before, F const& f, layout const& l) {
  using E = element<C>;
  using G = gradient<C>;
  extents const q = x.q_size, k = x.k_size, rows = x.lse_size;
  laid_out<E> in_q(q, l.q), in_k(k, l.k), in_v(k, l.v), in_d_o(q, l.d_o), o(q, l.o);
  laid_out<float> lse(rows, l.lse), in_d_lse(rows, l.lse);
  laid_out<G> d_q(q, l.d_q), d_k(k, l.d_k), d_v(k, l.d_v);
  in_q.fill(x.q), in_k.fill(x.k), in_v.fill(x.v), in_d_o.fill(x.d_o), in_d_lse.fill(x.d_lse);
  on_cuda const on{};
  device_memory const room(forward_workspace<C>(target_of(on), q, k, f)),
      scratch(backward_workspace<C>(target_of(on), q, k, f));
  status done = forward<C>(on, {.q = in_q, .k = in_k, .v = in_v, .o = o, .lse = lse, .scale = x.scale}, f, room);
  REQUIRE_MESSAGE(bool(done), done.message());
  bool same = std::string(done.kernel) == before.first;
  backward_args<C> a{.q = in_q,
                     .k = in_k,
                     .v = in_v,
                     .o = o,
                     .lse = lse,
                     .d_o = in_d_o,
                     .d_q = d_q,
                     .d_k = d_k,
                     .d_v = d_v,
                     .scale = x.scale};
  if (x.with_d_lse) a.d_lse = in_d_lse;
  done = backward<C>(on, a, f, scratch);
  REQUIRE_MESSAGE(bool(done), done.message());
  same = same && std::string(done.kernel) == before.second;
  check_cuda(cudaDeviceSynchronize());
  CHECK(agree(o.dense(), x.o, same));
  CHECK(agree(lse.dense(), x.lse, same));
  CHECK(agree(d_q.dense(), x.d_q, same));
  CHECK(agree(d_k.dense(), x.d_k, same));
  CHECK(agree(d_v.dense(), x.d_v, same));
  o.check_fence(), lse.check_fence(), d_q.check_fence(), d_k.check_fence(), d_v.check_fence();
}

/// Tensors of `copies` times the elements of x's, which they repeat, under two readings of the same memory: copies of
/// batch elements, or of heads. One head a batch element, so that both are [copies x batch, sequence, head_dim].
template <config C, class F>
void check_repeated(attention_case<C>& x, F const& f, std::int64_t copies) {
  using E = element<C>;
  kernel_names const before = device_case<C>(x).run(f);
  auto const repeated = [&](auto const& from) {
    auto to = from;
    to.reserve(from.size() * std::size_t(copies));
    for (std::int64_t i = 1; i < copies; ++i) to.insert(to.end(), from.begin(), from.end());
    return to;
  };
  std::int64_t const n = x.q_size.batch * copies, s = x.q_size.sequence, keys = x.k_size.sequence, d = C.head_dim;
  device_memory const q = on_device(repeated(x.q)), k = on_device(repeated(x.k)), v = on_device(repeated(x.v)),
                      d_o = on_device(repeated(x.d_o)), d_lse = on_device(repeated(x.d_lse));
  device_memory const o(q.bytes()), lse(d_lse.bytes()), d_q(q.bytes()), d_k(k.bytes()), d_v(k.bytes());
  auto const check = [&](extents eq, extents ek, strides sq, strides sk, strides sl) {
    extents const rows{eq.batch, eq.sequence, eq.heads, 1};
    on_cuda const on{};
    device_memory const scratch(backward_workspace<C>(target_of(on), eq, ek, f));
    view<E> const vq(q.as<E>(), eq, sq), vk(k.as<E>(), ek, sk), vv(v.as<E>(), ek, sk), vo(o.as<E>(), eq, sq);
    view<float> const vl(lse.as<float>(), rows, sl);
    status done = forward<C>(on, {.q = vq, .k = vk, .v = vv, .o = vo, .lse = vl}, f);
    REQUIRE_MESSAGE(bool(done), done.message());
    bool kernels = std::string(done.kernel) == before.first;
    done = backward<C>(on,
                       {.q = vq,
                        .k = vk,
                        .v = vv,
                        .o = vo,
                        .lse = vl,
                        .d_o = view<E>(d_o.as<E>(), eq, sq),
                        .d_lse = view<float>(d_lse.as<float>(), rows, sl),
                        .d_q = {d_q.as<E>(), eq, sq},
                        .d_k = {d_k.as<E>(), ek, sk},
                        .d_v = {d_v.as<E>(), ek, sk}},
                       f, scratch);
    REQUIRE_MESSAGE(bool(done), done.message());
    kernels = kernels && std::string(done.kernel) == before.second;
    check_cuda(cudaDeviceSynchronize());
    auto const same = [&](device_memory const& got, auto const& once) {
      auto const right = repeated(once);
      auto all = std::decay_t<decltype(right)>(right.size());
      got.read(all), got.check();
      return agree(all, right, kernels);
    };
    CHECK(same(o, x.o));
    CHECK(same(lse, x.lse));
    CHECK(same(d_q, x.d_q));
    CHECK(same(d_k, x.d_k));
    CHECK(same(d_v, x.d_v));
  };
  CAPTURE(n);
  check({n, s, 1, d}, {n, keys, 1, d}, dense({n, s, 1, d}), dense({n, keys, 1, d}), dense({n, s, 1, 1}));
  for (device_memory const* m : {&o, &lse, &d_q, &d_k, &d_v}) check_cuda(cudaMemset(m->as<void>(), 0xff, m->bytes()));
  check({1, s, n, d}, {1, keys, n, d}, head_major({1, s, n, d}), head_major({1, keys, n, d}), {n * s, 1, s, 1});
}

}  // namespace

// PyTorch issue 146704 (65,536 batch elements), 142228 (65,536 heads), flash-attention issue 1786 (80,000 sequences of
// 16): invalid launch configurations.
TEST_CASE("65,536 and 80,000 batch elements, then heads") {
  attention_case<causal> x({128, 4, 4, 1, 1});
  check_repeated(x, causal_bottom_right{}, 65536 / 128);
  attention_case<causal> y({125, 16, 16, 1, 1});
  check_repeated(y, causal_bottom_right{}, 80000 / 125);
}

// flash-attention issue 2260: [8300, 1, 16, 128] bf16, offsets of the batch past 32 bits. With one key o is v and d_v
// is d_o. In the second run rows are 2^18 elements apart, so that the last begin past 2^31.
TEST_CASE("8300 batch elements of one token, dense and with offsets past 2^31 elements") {
  attention_case<dense_bf16> x({8300, 1, 1, 16, 16});
  x.with_d_lse = false;
  kernel_names const of_x = device_case<dense_bf16>(x).run(full{});
  CHECK(all_finite(x.d_q));
  CHECK(same_bits(x.o, x.v));
  CHECK(same_bits(x.d_v, x.d_o));
  layout l = dense_layout(x.q_size, x.k_size);
  strides const s{std::int64_t(1) << 18, 16 * 128, 128};
  REQUIRE((x.q_size.batch - 1) * s.batch > beyond);
  if (!enough_memory(8 * 8300. * double(s.batch) * 2 + 1e9)) return;
  l.q = l.k = l.v = l.o = l.d_o = l.d_q = l.d_k = l.d_v = s;
  check_same(x, of_x, full{}, l);
}

// flash-attention issues 1500, 1311 and 2214, PyTorch issue 190857: 32-bit products of an index and a stride.
TEST_CASE("a batch, sequence or heads stride past 2^31 elements, in every tensor") {
  attention_case<dense_bf16> x({2, 2, 2, 2, 2});
  kernel_names const of_x = device_case<dense_bf16>(x).run(full{});
  if (!enough_memory(1.05 * double(beyond) * (8 * 2 + 2 * 4))) return;
  layout l = dense_layout(x.q_size, x.k_size);
  auto const each = [&](auto const& widen) {
    l = dense_layout(x.q_size, x.k_size);
    std::int64_t step = beyond;
    for (strides* s : {&l.q, &l.k, &l.v, &l.o, &l.d_o, &l.d_q, &l.d_k, &l.d_v, &l.lse}) widen(*s, step += 1536);
    check_same(x, of_x, full{}, l);
  };
  each([](strides& s, std::int64_t step) { s.batch = step; });
  each([](strides& s, std::int64_t step) { s.sequence = step; });
  each([](strides& s, std::int64_t step) { s.heads = step; });
}

// flash-attention issue 2611: packed documents, d_o a slice of a wider tensor, token times stride past 2^31.
TEST_CASE("packed documents: d_o as a slice whose offsets pass 2^31 elements") {
  constexpr config C = instances::bf16_split_64_documents::c;
  attention_case<C> x({1, 4096, 4096, 4, 4});
  std::vector<std::int32_t> cu;
  for (std::int32_t at = 0; at < 4096; at += 100 + at % 37) cu.push_back(at);
  cu.push_back(4096);
  device_memory const table = on_device(cu);
  causal_documents const f{table.as<std::int32_t>(), table.as<std::int32_t>(), std::int32_t(cu.size()) - 1};
  kernel_names const of_x = device_case<C>(x).run(f);
  layout l = dense_layout(x.q_size, x.k_size);
  l.d_o = {0, (std::int64_t(1) << 19) + 9728, 64};
  REQUIRE(4095 * l.d_o.sequence > beyond);
  if (!enough_memory(4096. * double(l.d_o.sequence) * 2 + 1e9)) return;
  check_same(x, of_x, f, l);
}

// flash-attention issue 355: one key head for four query heads, gradients were wrong until d_o was made contiguous.
TEST_CASE("one key/value head and a d_o that is not contiguous") {
  attention_case<dense_bf16> x({2, 32, 32, 4, 1});
  kernel_names const of_x = device_case<dense_bf16>(x).run(full{});
  layout l = dense_layout(x.q_size, x.k_size);
  l.d_o = head_major(x.q_size);
  check_same(x, of_x, full{}, l);
  l.d_o = {64 * 4 * 200, 4 * 200, 200};
  check_same(x, of_x, full{}, l);
}

// PyTorch issue 146377: keys and values as the first 3968 of 4096; d_k was garbage and not 0 for inputs of 0.
TEST_CASE("keys and values as a view of longer buffers: nothing behind them is read") {
  attention_case<causal> x({1, 4096, 3968, 16, 16});
  for (auto* t : {&x.q, &x.k, &x.v}) std::fill(t->begin(), t->end(), f16{});
  std::fill(x.d_o.begin(), x.d_o.end(), from_float<f16>(1.f));
  x.with_d_lse = false;
  kernel_names const of_x = device_case<causal>(x).run(causal_bottom_right{});
  CHECK(std::all_of(x.d_k.begin(), x.d_k.end(), [](f16 e) { return to_float(e) == 0.f; }));
  layout l = dense_layout(x.q_size, x.k_size);
  l.k = l.v = {16 * 4096 * 64, 64, 4096 * 64};
  check_same(x, of_x, causal_bottom_right{}, l);
  attention_case<causal> y({2, 300, 200, 4, 2});
  kernel_names const of_y = device_case<causal>(y).run(causal_bottom_right{});
  l = dense_layout(y.q_size, y.k_size);
  l.k = l.v = {2 * 256 * 64, 64, 256 * 64};
  check_same(y, of_y, causal_bottom_right{}, l);
}

// PyTorch issue 119500: k lies head-major, all else sequence-major; strides of gradients were mixed up.
TEST_CASE("k laid out differently from v: each gradient has its own tensor's layout") {
  attention_case<causal> x({2, 513, 513, 16, 16});
  kernel_names const of_x = device_case<causal>(x).run(causal_bottom_right{});
  layout l = dense_layout(x.q_size, x.k_size);
  l.k = l.d_k = head_major(x.k_size);
  check_same(x, of_x, causal_bottom_right{}, l);
}
