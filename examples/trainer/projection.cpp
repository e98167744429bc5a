#include "projection.hpp"

namespace trainer {

void projection::adapt(adapter_settings const& settings, std::int64_t first_row, std::int64_t out,
                       std::string const& module, parameter_list& list) {
  if (settings.kind != adapter_kind::none) adapters_.push_back({first_row, adapter(settings, in_, out, module, list)});
}

namespace {

buffer<std::byte> room(step_memory& memory, std::size_t bytes) {
  return memory.take<std::byte>(std::int64_t(bytes), "rounded");
}

}  // namespace

/// The matrix in T for one product; nothing where it is read as it is stored.
template <class T>
buffer<T> projection::widened(ops<T> const& op, step_memory& memory, base_matrix<T> w) const {
  if (mirror_ != mirror::bf16_f32) return {};
  buffer<T> full = memory.take<T>(in_ * out_, "widened");
  op.widen(in_ * out_, w.half, full);
  return full;
}

template <class T>
void projection::forward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, base_matrix<T> w,
                         T const* trained, T const* residual, T* y) const {
  if (mirror_ == mirror::bf16) {
    buffer<std::byte> const scratch = room(memory, op.needs_of_rounded(rows, in_, out_).forward);
    op.rounded_linear(rows, in_, out_, x, w.half, residual, y, scratch);
  } else {
    buffer<T> const full = widened(op, memory, w);
    op.linear(rows, in_, out_, x, mirror_ == mirror::f32 ? w.full : full.get(), residual, y);
  }
  for (adapted_rows const& a : adapters_) a.change.forward(op, memory, rows, x, trained, y + a.first_row, out_);
}

template <class T>
void projection::backward(ops<T> const& op, step_memory& memory, std::int64_t rows, T const* x, base_matrix<T> w,
                          T const* trained, T const* d_y, T* d_x, T* d_base, T* gradients) const {
  if (mirror_ == mirror::bf16) {
    buffer<std::byte> const scratch = room(memory, op.needs_of_rounded(rows, in_, out_).backward);
    op.rounded_linear_backward(rows, in_, out_, w.half, d_y, d_x, scratch);
  } else {
    buffer<T> const full = widened(op, memory, w);
    op.linear_backward(rows, in_, out_, x, mirror_ == mirror::f32 ? w.full : full.get(), d_y, d_x, d_base);
  }
  for (adapted_rows const& a : adapters_)
    a.change.backward(op, memory, rows, x, trained, d_y + a.first_row, out_, d_x, gradients);
}

template void projection::forward(ops<float> const&, step_memory&, std::int64_t, float const*, base_matrix<float>,
                                  float const*, float const*, float*) const;
template void projection::backward(ops<float> const&, step_memory&, std::int64_t, float const*, base_matrix<float>,
                                   float const*, float const*, float*, float*, float*) const;
template void projection::forward(ops<double> const&, step_memory&, std::int64_t, double const*, base_matrix<double>,
                                  double const*, double const*, double*) const;
template void projection::backward(ops<double> const&, step_memory&, std::int64_t, double const*, base_matrix<double>,
                                   double const*, double const*, double*, double*, double*) const;

}  // namespace trainer
