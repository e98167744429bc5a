// Picks the instance of the engine, or of the reference, that a problem needs.
#include "problem.hpp"

#include <algorithm>
#include <stdexcept>

#include "cuda.hpp"
#include "engine.hpp"

namespace parity {

using lanewise::gradient_type;
using lanewise::precision;

namespace {

/// Calls f with the variant type that has no score operator where none is wanted.
template <class F>
auto with_variant(choice const& c, F const& f) {
  return c.has_score() ? f(c.variant()) : f(c.mask());
}

template <precision P>
void run_stored(problem const& p, outputs& out, lanewise::on_cpu on) {
  lanewise::status done = with_variant(p.variant, [&](auto const& f) { return forward_of<P>(p, out, on, f); });
  if (!done) throw std::runtime_error(std::string("forward: ") + name_of(done.code) + ": " + done.message());
  out.forward_kernel = done.kernel;
  if (!p.backward()) return;
  done = with_variant(p.variant, [&](auto const& f) {
    if constexpr (P != precision::f32)
      if (p.gradient == gradient_type::f32) return backward_of<P, gradient_type::f32>(p, out, on, f);
    return backward_of<P, gradient_type::storage>(p, out, on, f);
  });
  if (!done) throw std::runtime_error(std::string("backward: ") + name_of(done.code) + ": " + done.message());
  out.backward_kernel = done.kernel;
}

template <class T>
lanewise::reference::result reference_stored(problem const& p, lanewise::reference::arithmetic how, int threads) {
  lanewise::reference::problem<T> const in{.q = p.q.as<T>(),
                                           .k = p.k.as<T>(),
                                           .v = p.v.as<T>(),
                                           .d_o = p.d_o.as<T>(),
                                           .d_lse = p.d_lse.as<float>(),
                                           .scale = p.scale,
                                           .empty_lse = p.empty_lse,
                                           .threads = threads};
  return with_variant(p.variant, [&](auto const& f) { return lanewise::reference::attention(in, f, how); });
}

lanewise::reference::result reference_of(problem const& p, lanewise::reference::arithmetic how, int threads) {
  switch (p.storage()) {
    case number::bf16: return reference_stored<lanewise::bf16>(p, how, threads);
    case number::f16: return reference_stored<lanewise::f16>(p, how, threads);
    default: return reference_stored<float>(p, how, threads);
  }
}

/// Dense, every element rounded to the nearest with 10 bits behind the point.
array rounded_to_tf32(array const& x) {
  array r = converted(x, number::f32);
  float* const data = reinterpret_cast<float*>(r.bytes->data());
  for (std::int64_t i = 0; i < r.size.count(); ++i)
    data[i] = lanewise::bit_cast<float>((lanewise::bit_cast<std::uint32_t>(data[i]) + 0x1000u) & 0xffffe000u);
  return r;
}

template <int... D>
std::vector<int> list_of(int_list<D...>) {
  return {D...};
}

}  // namespace

number storage_of(lanewise::precision p) {
  if (p == lanewise::precision::f16) return number::f16;
  return p == lanewise::precision::bf16 || p == lanewise::precision::bf16_split ? number::bf16 : number::f32;
}

outputs make_outputs(problem const& p) {
  outputs out;
  out.o = make(p.storage(), p.q.size);
  out.lse = make(number::f32, p.lse_size());
  if (p.backward()) {
    out.d_q = make(p.gradient_storage(), p.q.size);
    out.d_k = make(p.gradient_storage(), p.k.size);
    out.d_v = make(p.gradient_storage(), p.v.size);
  }
  return out;
}

void run(problem const& p, outputs& out, lanewise::on_cpu on) {
  if (p.device == device::cuda) return run_on_cuda(p, out);
  auto const compiled = compiled_head_dims(p.device, p.precision, p.backward() ? p.gradient : gradient_type::storage);
  if (std::find(compiled.begin(), compiled.end(), p.q.size.head_dim) == compiled.end())
    throw not_compiled(p, compiled, "examples/parity/engine.hpp");
  switch (p.precision) {
    case precision::bf16: return run_stored<precision::bf16>(p, out, on);
    case precision::bf16_split: return run_stored<precision::bf16_split>(p, out, on);
    case precision::f16: return run_stored<precision::f16>(p, out, on);
    default: return run_stored<precision::f32>(p, out, on);  // tf32 and f32_split have the same bits on the CPU
  }
}

std::runtime_error not_compiled(problem const& p, std::vector<int> const& compiled, char const* list) {
  std::string text = "parity is compiled for head dims";
  for (int d : compiled) (text += ' ') += std::to_string(d);
  return std::runtime_error(text + " with precision " + name_of(p.precision) + ", not " +
                            std::to_string(p.q.size.head_dim) + "; " + list + " has the list");
}

std::vector<int> compiled_head_dims(device where, precision p, gradient_type g) {
  if (where == device::cuda) return cuda_head_dims(p, g);
  bool const few = p == precision::bf16_split || (g == gradient_type::f32 && storage_of(p) != number::f32);
  return few ? list_of(few_head_dims{}) : list_of(head_dims{});
}

lanewise::reference::result exact_reference(problem const& p, int threads) {
  return reference_of(p, lanewise::reference::exact, threads);
}

lanewise::reference::result rounded_reference(problem const& p, int threads) {
  if (p.device == device::cuda && p.precision == precision::tf32) {
    problem rounded = p;  // every operand has 11 bits, as an f16 has
    for (array* x : {&rounded.q, &rounded.k, &rounded.v, &rounded.d_o})
      if (*x) *x = rounded_to_tf32(*x);
    return reference_of(rounded, {number::f64, number::f16, number::f32, number::f32}, threads);
  }
  bool const split = p.precision == precision::bf16_split;
  return reference_of(p,
                      {.sums = number::f32,
                       .operand = split ? number::f32 : p.storage(),
                       .output = p.storage(),
                       .gradient = p.gradient_storage(),
                       .recompute_delta = split},
                      threads);
}

}  // namespace parity
