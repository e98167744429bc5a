// Elements of tensors whose type and strides are known at run time; random numbers.
#include "tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <stdexcept>

namespace parity {

namespace {

/// Calls f(E*) with the element type of x.
template <class F>
auto with_element(array const& x, F const& f) {
  std::byte* const data = x.bytes->data();
  switch (x.type) {
    case number::f16: return f(reinterpret_cast<lanewise::f16*>(data) + x.offset);
    case number::bf16: return f(reinterpret_cast<lanewise::bf16*>(data) + x.offset);
    case number::f64: return f(reinterpret_cast<double*>(data) + x.offset);
    default: return f(reinterpret_cast<float*>(data) + x.offset);
  }
}

double load(double x) { return x; }
template <class E>
double load(E x) {
  return lanewise::to_float(x);
}
void store(double& to, double x) { to = x; }
template <class E>
void store(E& to, double x) {
  to = lanewise::from_float<E>(float(x));
}

/// f(position in memory, dense index) for every element.
template <class F>
void each(array const& x, F const& f) {
  std::int64_t dense = 0;
  for (std::int64_t b = 0; b < x.size.batch; ++b)
    for (std::int64_t s = 0; s < x.size.sequence; ++s)
      for (std::int64_t h = 0; h < x.size.heads; ++h)
        for (std::int64_t d = 0; d < x.size.head_dim; ++d, ++dense)
          f(b * x.stride.batch + s * x.stride.sequence + h * x.stride.heads + d * x.stride.inner, dense);
}

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Uniform in (0, 1).
double uniform(std::uint64_t seed, std::uint64_t i) { return (double(mix(mix(seed) + i) >> 11) + 0.5) * 0x1p-53; }

/// Quantile of Student's t with 4 degrees of freedom (Shaw 2006).
double student4(double u) {
  double const a = 4 * u * (1 - u), root = std::sqrt(a);
  double const t = 2 * std::sqrt(std::max(0.0, std::cos(std::acos(root) / 3) / root - 1));
  return u < 0.5 ? -t : t;
}

}  // namespace

char const* name_of(number type) {
  switch (type) {
    case number::f64: return "f64";
    case number::f32: return "f32";
    case number::f16: return "f16";
    case number::bf16: return "bf16";
  }
  return "unknown";
}

std::size_t bytes_of(number type) { return type == number::f64 ? 8 : type == number::f32 ? 4 : 2; }

char const* name_of(distribution d) {
  switch (d) {
    case distribution::normal: return "normal";
    case distribution::normal3: return "normal3";
    case distribution::heavy: return "heavy";
  }
  return "unknown";
}

strides strides_of(extents size, std::string_view order) {
  std::string sorted(order);
  std::sort(sorted.begin(), sorted.end());
  if (sorted != "bdhs") throw std::runtime_error("layout '" + std::string(order) + "' is not an order of b, s, h, d");
  strides r{};
  std::int64_t step = 1;
  for (auto letter = order.rbegin(); letter != order.rend(); ++letter) {
    auto const [stride, count] = *letter == 'b'   ? std::pair(&r.batch, size.batch)
                                 : *letter == 's' ? std::pair(&r.sequence, size.sequence)
                                 : *letter == 'h' ? std::pair(&r.heads, size.heads)
                                                  : std::pair(&r.inner, size.head_dim);
    *stride = step;
    step *= count;
  }
  return r;
}

array make(number type, extents size, strides stride, std::int64_t elements, std::int64_t offset) {
  auto bytes = std::make_shared<std::vector<std::byte>>(std::size_t(elements) * bytes_of(type), std::byte{0xff});
  return {type, size, stride, offset, std::move(bytes)};
}

array make(number type, extents size, std::string_view order) {
  // one element at least, so that an empty tensor is not taken for one that is not given
  return make(type, size, strides_of(size, order), std::max<std::int64_t>(size.count(), 1), 0);
}

double at(array const& x, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
  std::int64_t const i = b * x.stride.batch + s * x.stride.sequence + h * x.stride.heads + d * x.stride.inner;
  return with_element(x, [&](auto* data) { return load(data[i]); });
}

void set(array const& x, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d, double value) {
  std::int64_t const i = b * x.stride.batch + s * x.stride.sequence + h * x.stride.heads + d * x.stride.inner;
  with_element(x, [&](auto* data) { store(data[i], value); });
}

std::vector<double> values_of(array const& x) {
  std::vector<double> r(x.size.count());
  with_element(x, [&](auto* data) { each(x, [&](std::int64_t i, std::int64_t dense) { r[dense] = load(data[i]); }); });
  return r;
}

array converted(array const& x, number type, std::string_view order) {
  array r = make(type, x.size, order);
  with_element(x, [&](auto* from) {
    with_element(r, [&](auto* to) {
      std::vector<std::int64_t> source(x.size.count());
      each(x, [&](std::int64_t i, std::int64_t dense) { source[dense] = i; });
      each(r, [&](std::int64_t i, std::int64_t dense) { store(to[i], load(from[source[dense]])); });
    });
  });
  return r;
}

bool same_bits(array const& x, array const& y) {
  if (x.type != y.type || !(x.size == y.size)) return false;
  std::size_t const n = bytes_of(x.type);
  std::vector<std::int64_t> place(x.size.count());
  each(x, [&](std::int64_t i, std::int64_t dense) { place[dense] = i; });
  bool same = true;
  each(y, [&](std::int64_t i, std::int64_t dense) {
    same = same &&
           std::memcmp(x.bytes->data() + (x.offset + place[dense]) * n, y.bytes->data() + (y.offset + i) * n, n) == 0;
  });
  return same;
}

double normal(std::uint64_t seed, std::uint64_t i) {  // Box and Muller
  return std::sqrt(-2 * std::log(uniform(seed, 2 * i))) * std::cos(2 * std::numbers::pi * uniform(seed, 2 * i + 1));
}

void fill(array const& x, std::uint64_t seed, distribution kind) {
  with_element(x, [&](auto* data) {
    each(x, [&](std::int64_t i, std::int64_t dense) {
      store(data[i], kind == distribution::heavy ? student4(uniform(seed, dense))
                                                 : normal(seed, dense) * (kind == distribution::normal3 ? 3 : 1));
    });
  });
}

std::string text_of(extents e) {
  char text[96];
  std::snprintf(text, sizeof text, "[%lld, %lld, %lld, %lld]", (long long)e.batch, (long long)e.sequence,
                (long long)e.heads, (long long)e.head_dim);
  return text;
}

}  // namespace parity
