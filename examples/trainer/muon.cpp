#include "muon.hpp"

#include <algorithm>
#include <cmath>

namespace trainer {

bool muon::takes(parameter const& p) {
  return p.shape.size() == 2 && std::min(p.shape[0], p.shape[1]) >= shortest_side;
}

muon::muon(adamw_settings const& settings, parameter_list const& trained, bool (*chosen)(parameter const&))
    : settings_(settings), rest_(settings, trained, chosen) {
  for (parameter const& p : trained.all())
    if (chosen(p)) {
      auto const inside = [&](segment const& s) { return s.begin >= p.offset && s.begin < p.offset + p.count; };
      auto const& all = rest_.segments();
      auto const first = std::ranges::find_if(all, inside);
      matrices_.push_back({p.offset, p.shape[0], p.shape[1], first - all.begin(), std::ranges::count_if(all, inside)});
    }
}

void muon::step(ops<float> const& op, step_memory& memory, matrix const& m, double learning_rate, double clip,
                adamw_arrays const& on, float* gradients) const {
  std::int64_t const r = m.rows, c = m.columns, count = r * c, side = std::min(r, c);
  bool const wide = r <= c;
  float *const g = gradients + m.offset, *const momenta = on.m + m.offset, *const w = on.weights + m.offset;
  op.add_columns(r, c, float(clip), g, c, float(momentum), momenta, c);
  op.add_columns(r, c, float(momentum), momenta, c, float(clip), g, c);
  op.norm(m.segments, on.segments + m.first_segment, gradients, on.squares, on.norm);
  double norm = 0;
  op.download(1, on.norm, &norm);

  buffer<float> x = memory.take<float>(count, "muon"), next = memory.take<float>(count, "muon");
  buffer<float> const a = memory.take<float>(side * side, "muon"), b = memory.take<float>(side * side, "muon");
  op.add_columns(r, c, float(1 / (norm + 1e-7)), g, c, 0.f, x, c);
  for (int i = 0; i < iterations; ++i) {
    op.product(wide ? transpose::no : transpose::yes, wide ? transpose::yes : transpose::no, side, side, wide ? c : r,
               1.f, x, c, x, c, 0.f, a, side);
    op.add_columns(side, side, 1.f, a, side, 0.f, b, side);
    op.product(transpose::no, transpose::no, side, side, side, 2.0315f, a, side, a, side, -4.7750f, b, side);
    op.add_columns(r, c, 1.f, x, c, 0.f, next, c);
    if (wide) op.product(transpose::no, transpose::no, r, c, r, 1.f, b, side, x, c, 3.4445f, next, c);
    else op.product(transpose::no, transpose::no, r, c, c, 1.f, x, c, b, side, 3.4445f, next, c);
    std::swap(x, next);
  }
  double const rate = learning_rate * rate_scale * std::sqrt(std::max(1.0, double(r) / double(c)));
  op.add_columns(r, c, float(-rate), x, c, float(1 - learning_rate * settings_.weight_decay), w, c);
}

double muon::update(ops<float> const& op, step_memory& memory, std::int64_t t, double learning_rate,
                    adamw_arrays const& on, float* gradients) const {
  rest_.update(op, t, learning_rate, on);
  double norm = 0;
  op.download(1, on.norm, &norm);
  if (!op.planning() && !std::isfinite(norm)) return norm;
  double const clip = norm > settings_.clip ? settings_.clip / norm : 1;
  for (matrix const& m : matrices_) step(op, memory, m, learning_rate, clip, on, gradients);
  return norm;
}

}  // namespace trainer
