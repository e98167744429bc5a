#include "adapter.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "random.hpp"

namespace trainer {

std::pair<std::int64_t, std::int64_t> factorization(std::int64_t d, std::int64_t factor) {
  if (factor > 0 && d % factor == 0) return std::minmax({factor, d / factor});
  std::int64_t first = 1;  // of the divisors up to the root, a larger one makes the sum smaller
  for (std::int64_t m = 2; m <= d / m && (factor < 0 || m <= factor); ++m)
    if (d % m == 0) first = m;
  return {first, d / first};
}

lokr_shape::lokr_shape(std::int64_t in, std::int64_t out, std::int64_t dim, std::int64_t factor) : dim(dim) {
  std::tie(in_m, in_n) = factorization(in, factor);
  std::tie(out_l, out_k) = factorization(out, factor);
  factorised = 2 * dim < std::max(out_k, in_n);
}

lokr_order lokr_shape::cheapest_order() const {
  lokr_order best = lokr_order::w2;
  std::int64_t channels = out_k;
  if (factorised && dim < channels) best = lokr_order::mid, channels = dim;
  if (in_n < channels) best = lokr_order::w1;
  return best;
}

adapter::adapter(adapter_settings const& s, std::int64_t in, std::int64_t out, std::string const& module,
                 parameter_list& list)
    : adapter(s, in, out, module, list, lokr_shape(in, out, s.dim, s.factor).cheapest_order()) {}

adapter::adapter(adapter_settings const& s, std::int64_t in, std::int64_t out, std::string const& module,
                 parameter_list& list, lokr_order order)
    : module_(module), in_(in), out_(out), scale_(s.alpha == 0 ? 1 : s.alpha / double(s.dim)) {
  if (s.kind == adapter_kind::lora) {
    build_lora(s.dim, list);
  } else {
    lokr_shape const shape(in, out, s.dim, s.factor);
    if (!shape.factorised) scale_ = 1;
    build_lokr(shape, order, list);
  }
}

std::int64_t adapter::add(char const* name, std::int64_t rows, std::int64_t columns, bool drawn, parameter_list& list) {
  std::int64_t const offset = list.add(module_ + name, {rows, columns});
  tensors_[std::size_t(tensor_count_++)] = {offset, rows, columns, drawn};
  return offset;
}

void adapter::build_lora(std::int64_t rank, parameter_list& list) {
  std::int64_t const a = add(".lora_A.weight", rank, in_, true, list);
  std::int64_t const b = add(".lora_B.weight", out_, rank, false, list);
  legs_[0] = {false, a, 1, in_, 1, rank};
  legs_[1] = {false, b, 1, rank, 1, out_};
  count_ = 2;
}

void adapter::build_lokr(lokr_shape const& s, lokr_order order, parameter_list& list) {
  if (order == lokr_order::mid && !s.factorised) throw std::logic_error("adapter: a whole w2 has no middle");
  std::int64_t const w1 = add(".lokr_w1", s.out_l, s.in_m, true, list);
  struct product {
    std::int64_t weight, in, out;
  };
  std::array<product, 2> products{};
  if (s.factorised) {
    std::int64_t const a = add(".lokr_w2_a", s.out_k, s.dim, true, list);
    std::int64_t const b = add(".lokr_w2_b", s.dim, s.in_n, false, list);
    products = {{{b, s.in_n, s.dim}, {a, s.dim, s.out_k}}};
  } else {
    products[0] = {add(".lokr_w2", s.out_k, s.in_n, false, list), s.in_n, s.out_k};
  }
  int const product_count = s.factorised ? 2 : 1;
  int const mixing = order == lokr_order::w1 ? 0 : order == lokr_order::mid ? 1 : product_count;
  std::int64_t channels = s.in_n;
  for (int i = 0; i <= product_count; ++i) {
    std::int64_t const groups = i <= mixing ? s.in_m : s.out_l;
    if (i == mixing) {
      legs_[std::size_t(i)] = {true, w1, s.in_m, channels, s.out_l, channels};
      continue;
    }
    product const& p = products[std::size_t(i < mixing ? i : i - 1)];
    legs_[std::size_t(i)] = {false, p.weight, groups, p.in, groups, p.out};
    channels = p.out;
  }
  count_ = product_count + 1;
}

template <class T>
void adapter::initialise(std::uint64_t seed, std::uint64_t index, T* trained) const {
  for (int i = 0; i < tensor_count_; ++i) {
    tensor const& t = tensors_[std::size_t(i)];
    random_numbers draw(seed, stream::adapters, 3 * index + std::uint64_t(i));
    double const reach = 1 / std::sqrt(double(t.columns));
    for (std::int64_t j = 0; j < t.rows * t.columns; ++j)
      trained[t.offset + j] = t.drawn ? T((2 * draw.uniform() - 1) * reach) : T(0);
  }
}

/// y = scale leg(x) + beta y; rows of x are dense.
template <class T>
void adapter::leg_forward(ops<T> const& op, leg const& l, std::int64_t rows, T scale, T const* x, T const* trained,
                          T beta, T* y, std::int64_t y_stride) const {
  T const* const w = trained + l.weight;
  if (l.mixes)
    return op.mix({rows, l.in_groups, l.out_groups, l.in_channels}, transpose::no, scale, w, x, l.in(), beta, y,
                  y_stride);
  if (l.is_even(y_stride))
    return op.product(transpose::no, transpose::yes, rows * l.in_groups, l.out_channels, l.in_channels, scale, x,
                      l.in_channels, w, l.in_channels, beta, y, l.step(y_stride));
  op.grouped_product({l.in_groups, l.in_channels, 0, l.out_channels}, transpose::no, transpose::yes, rows,
                     l.out_channels, l.in_channels, scale, x, l.in(), w, l.in_channels, beta, y, y_stride);
}

/// gradients += scale d leg / d weight; d_x = scale leg^T(d_y) + beta d_x, unless null.
template <class T>
void adapter::leg_backward(ops<T> const& op, step_memory& memory, leg const& l, std::int64_t rows, T scale, T const* x,
                           T const* trained, T const* d_y, std::int64_t d_y_stride, T beta, T* d_x,
                           T* gradients) const {
  T const* const w = trained + l.weight;
  T* const d_w = gradients + l.weight;
  if (l.mixes) {
    mix_shape const s{rows, l.in_groups, l.out_groups, l.in_channels};
    buffer<T> const partial = memory.take<T>(s.partial_count(), "mix partial");
    op.mix_weight_backward(s, scale, d_y, d_y_stride, x, l.in(), d_w, partial);
    if (d_x) op.mix(s, transpose::yes, scale, w, d_y, d_y_stride, beta, d_x, l.in());
    return;
  }
  if (l.is_even(d_y_stride)) {
    std::int64_t const step = l.step(d_y_stride);
    op.product(transpose::yes, transpose::no, l.out_channels, l.in_channels, rows * l.in_groups, scale, d_y, step, x,
               l.in_channels, T(1), d_w, l.in_channels);
    if (d_x)
      op.product(transpose::no, transpose::no, rows * l.in_groups, l.in_channels, l.out_channels, scale, d_y, step, w,
                 l.in_channels, beta, d_x, l.in_channels);
    return;
  }
  op.grouped_product({l.in_groups, l.out_channels, l.in_channels, 0}, transpose::yes, transpose::no, l.out_channels,
                     l.in_channels, rows, scale, d_y, d_y_stride, x, l.in(), T(1), d_w, l.in_channels);
  if (d_x)
    op.grouped_product({l.in_groups, l.out_channels, 0, l.in_channels}, transpose::no, transpose::no, rows,
                       l.in_channels, l.out_channels, scale, d_y, d_y_stride, w, l.in_channels, beta, d_x, l.in());
}

template <class T>
void adapter::forward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, T const* trained, T* y,
                      std::int64_t y_stride) const {
  std::array<buffer<T>, 2> between;
  int const last = count_ - 1;
  for (int i = 0; i < last; ++i) {
    leg const& l = legs_[std::size_t(i)];
    buffer<T>& to = between[std::size_t(i)];
    to = memory.take<T>(rows * l.out(), "adapter");
    leg_forward(op, l, rows, T(1), i == 0 ? x : between[std::size_t(i - 1)].get(), trained, T(0), to.get(), l.out());
    if (i > 0) between[std::size_t(i - 1)] = {};
  }
  leg const& l = legs_[std::size_t(last)];
  leg_forward(op, l, rows, T(scale_), between[std::size_t(last - 1)].get(), trained, T(1), y, y_stride);
}

template <class T>
void adapter::backward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, T const* trained,
                       T const* d_y, std::int64_t d_y_stride, T* d_x, T* gradients) const {
  std::array<buffer<T>, 2> inputs;  // of the second and the third leg, made again
  for (int i = 0; i + 1 < count_; ++i) {
    leg const& l = legs_[std::size_t(i)];
    inputs[std::size_t(i)] = memory.take<T>(rows * l.out(), "adapter");
    leg_forward(op, l, rows, T(1), i == 0 ? x : inputs[std::size_t(i - 1)].get(), trained, T(0),
                inputs[std::size_t(i)].get(), l.out());
  }
  buffer<T> upstream;
  for (int i = count_ - 1; i > 0; --i) {
    leg const& l = legs_[std::size_t(i)];
    buffer<T> below = memory.take<T>(rows * l.in(), "d_adapter");
    leg_backward(op, memory, l, rows, T(i == count_ - 1 ? scale_ : 1), inputs[std::size_t(i - 1)].get(), trained, d_y,
                 d_y_stride, T(0), below.get(), gradients);
    inputs[std::size_t(i - 1)] = {};
    upstream = std::move(below);
    d_y = upstream;
    d_y_stride = l.in();
  }
  leg_backward(op, memory, legs_[0], rows, T(1), x, trained, d_y, d_y_stride, T(1), d_x, gradients);
}

template void adapter::initialise(std::uint64_t, std::uint64_t, float*) const;
template void adapter::forward(ops<float> const&, step_memory&, std::int64_t, float const*, float const*, float*,
                               std::int64_t) const;
template void adapter::backward(ops<float> const&, step_memory&, std::int64_t, float const*, float const*, float const*,
                                std::int64_t, float*, float*) const;
template void adapter::initialise(std::uint64_t, std::uint64_t, double*) const;
template void adapter::forward(ops<double> const&, step_memory&, std::int64_t, double const*, double const*, double*,
                               std::int64_t) const;
template void adapter::backward(ops<double> const&, step_memory&, std::int64_t, double const*, double const*,
                                double const*, std::int64_t, double*, double*) const;

}  // namespace trainer
