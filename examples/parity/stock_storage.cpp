// Precisions that the CPU treats alike, and packed buffers.
#include <algorithm>
#include <cstring>
#include <functional>
#include <lanewise/memory/packed.hpp>
#include <memory>

#include "stock_case.hpp"

namespace parity {

namespace {

/// The precision knob changes nothing on the CPU: the bits are those of the plain precision of the same storage.
template <lanewise::precision Plain, lanewise::precision Other>
case_result same_bits_case(grid_options const& o, std::uint64_t seed) {
  constexpr lanewise::config plain{.head_dim = 64, .precision = Plain}, other{.head_dim = 64, .precision = Other};
  grid_case c;
  c.size = {1, 4, 2, 100, 133, 64};
  c.precision = Plain;
  problem const p = problem_of(c, o, seed);
  outputs x = make_outputs(p), y = make_outputs(p);
  case_result r;
  r.name = std::string("precision ") + name_of(Other) + " has the bits of " + name_of(Plain);
  r.sizes = text_of(c.size, Other, c.gradient);
  auto const run = [&]<lanewise::config C>(outputs& out) {
    lanewise::status done = call_forward<C>(p, out, {}, lanewise::full{});
    if (done) done = call_backward<C>(p, out, {}, lanewise::full{});
    if (!done) r.faults.push_back(done.message());
  };
  run.template operator()<plain>(x), run.template operator()<other>(y);
  if (!same_bits(x.o, y.o) || !same_bits(x.d_q, y.d_q) || !same_bits(x.d_k, y.d_k) || !same_bits(x.d_v, y.d_v))
    r.faults.push_back("the bits differ");
  return r;
}

/// Packed buffers full of NaN: their parts get the bits of a plain call, their gaps get zeros.
template <lanewise::config C>
case_result packed_case(dimensions size, std::size_t align, grid_options const& o, std::uint64_t seed) {
  using E = lanewise::element<C>;
  grid_case c;
  c.size = size, c.precision = C.precision;
  problem const p = problem_of(c, o, seed);
  outputs out = make_outputs(p);
  case_result r;
  r.name = "packed buffers, align " + std::to_string(align);
  r.sizes = text_of(size, C.precision, c.gradient);
  lanewise::packed_forward<C> const forward{p.q.size, align};
  lanewise::packed_backward<C> const backward{p.q.size, p.k.size, align};
  std::align_val_t const place{align};
  std::unique_ptr<unsigned char, std::function<void(void*)>> const buffers[] = {
      {static_cast<unsigned char*>(::operator new(forward.bytes(), place)),
       [=](void* x) { ::operator delete(x, place); }},
      {static_cast<unsigned char*>(::operator new(backward.bytes(), place)),
       [=](void* x) { ::operator delete(x, place); }}};
  unsigned char *const o_lse = buffers[0].get(), *const d_qkv = buffers[1].get();
  std::memset(o_lse, 0xff, forward.bytes()), std::memset(d_qkv, 0xff, backward.bytes());
  scratch const room(std::max(lanewise::forward_workspace<C>(target_of(lanewise::on_cpu{}), p.q.size, p.k.size),
                              lanewise::backward_workspace<C>(target_of(lanewise::on_cpu{}), p.q.size, p.k.size)));
  lanewise::status done = call_forward<C>(p, out, {}, lanewise::full{});
  if (done) done = call_backward<C>(p, out, {}, lanewise::full{});
  if (done)
    done = lanewise::forward_packed<C>(lanewise::on_cpu{},
                                       {.q = p.q.as<E>(),
                                        .k = p.k.as<E>(),
                                        .v = p.v.as<E>(),
                                        .o_lse = {o_lse, forward.bytes(), align},
                                        .scale = p.scale},
                                       lanewise::full{}, room.get());
  if (done)
    done = lanewise::backward_packed<C>(lanewise::on_cpu{},
                                        {.q = p.q.as<E>(),
                                         .k = p.k.as<E>(),
                                         .v = p.v.as<E>(),
                                         .o_lse = {o_lse, forward.bytes(), align},
                                         .d_o = p.d_o.as<E>(),
                                         .d_qkv = {d_qkv, backward.bytes(), align},
                                         .scale = p.scale},
                                        lanewise::full{}, room.get());
  if (!done) {
    r.faults.push_back(done.message());
    return r;
  }
  std::size_t gaps = 0, dirty = 0;
  auto const look = [&](unsigned char const* base, lanewise::packed_range gap) {
    gaps += gap.size();
    dirty += std::count_if(base + gap.begin, base + gap.end, [](unsigned char x) { return x != 0; });
  };
  look(o_lse, forward.gap()), look(d_qkv, backward.gap(0)), look(d_qkv, backward.gap(1));
  if (gaps == 0) r.faults.push_back("no gap at these sizes: the case tests nothing");
  if (dirty > 0) r.faults.push_back(std::to_string(dirty) + " of " + std::to_string(gaps) + " gap bytes are not zero");
  auto const part = [&](char const* name, array const& x, void const* at) {
    if (std::memcmp(x.bytes->data(), at, x.size.count() * bytes_of(x.type)) != 0)
      r.faults.push_back(std::string(name) + " has other bits than without packing");
  };
  part("o", out.o, o_lse), part("lse", out.lse, o_lse + forward.lse_offset());
  part("dq", out.d_q, d_qkv), part("dk", out.d_k, d_qkv + backward.d_k_offset()),
      part("dv", out.d_v, d_qkv + backward.d_v_offset());
  return r;
}

}  // namespace

std::vector<case_result> run_stock_storage(grid_options const& o, std::uint64_t seed) {
  std::vector<case_result> all;
  all.push_back(same_bits_case<lanewise::precision::f32, lanewise::precision::tf32>(o, seed));
  all.push_back(same_bits_case<lanewise::precision::f32, lanewise::precision::f32_split>(o, seed));
  all.push_back(packed_case<lanewise::config{.head_dim = 80}>({1, 1, 1, 1, 1, 80}, 128, o, seed));
  all.push_back(packed_case<lanewise::config{.head_dim = 40}>({1, 3, 3, 5, 5, 40}, 128, o, seed));
  all.push_back(packed_case<lanewise::config{.head_dim = 64}>({1, 1, 1, 1, 1, 64}, 512, o, seed));
  all.push_back(packed_case<lanewise::config{.head_dim = 40, .precision = lanewise::precision::bf16}>(
      {2, 3, 1, 33, 21, 40}, 128, o, seed));
  return all;
}

}  // namespace parity
