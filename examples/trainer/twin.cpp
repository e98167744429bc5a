#include "twin.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace trainer {
namespace {

using vector = std::vector<float>;

bool same_bits(vector const& a, vector const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Sum over i of f(i), in the order of i.
template <class F>
double sum(std::size_t count, F const& f) {
  double s = 0;
  for (std::size_t i = 0; i < count; ++i) s += f(i);
  return s;
}
double norm(vector const& a) {
  return std::sqrt(sum(a.size(), [&](std::size_t i) { return double(a[i]) * double(a[i]); }));
}
double distance(vector const& a, vector const& b) {
  return std::sqrt(sum(a.size(), [&](std::size_t i) {
    double const d = double(a[i]) - double(b[i]);
    return d * d;
  }));
}
/// 0 / 0 is 0: nothing differs from nothing.
double ratio(double a, double b) { return a == 0 ? 0 : a / b; }

}  // namespace

char const* name_of(drift d) {
  switch (d) {
    case drift::identical: return "identical";
    case drift::close: return "close";
    case drift::apart: break;
  }
  return "apart";
}

double twin_report::largest_loss_difference() const {
  double most = 0;
  for (twin_step const& s : steps) most = std::max(most, std::abs(s.loss[1] - s.loss[0]));
  return most;
}

drift twin_report::verdict() const {
  if (first_difference == 0) return drift::identical;
  double const learned = held_out_before[0] - held_out[0];
  return std::abs(held_out[1] - held_out[0]) <= learned / 100 ? drift::close : drift::apart;
}

twin_report compare_twins(trainee& first, trainee& second, std::int64_t steps) {
  std::array<trainee*, 2> const runs{&first, &second};
  std::array<vector, 2> start, gradient, weights;
  twin_report r;
  for (std::size_t i = 0; i < 2; ++i) {
    start[i] = weights[i] = runs[i]->get(state_array::weights);
    r.held_out_before[i] = runs[i]->held_out();
  }
  for (std::int64_t t = 1; t <= steps; ++t) {
    twin_step s{};
    for (std::size_t i = 0; i < 2; ++i) {
      s.loss[i] = runs[i]->compute_gradients(t);
      gradient[i] = runs[i]->get(state_array::gradients);
      runs[i]->update(t, s.loss[i]);
      weights[i] = runs[i]->get(state_array::weights);
    }
    s.gradient = ratio(distance(gradient[1], gradient[0]), norm(gradient[0]));
    s.weights = ratio(distance(weights[1], weights[0]), distance(weights[0], start[0]));
    r.steps.push_back(s);
    bool const same =
        s.loss[0] == s.loss[1] && same_bits(gradient[0], gradient[1]) && same_bits(weights[0], weights[1]);
    if (!same && r.first_difference == 0) r.first_difference = t;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    r.held_out[i] = runs[i]->held_out();
    for (std::size_t j = 0; j < weights[i].size(); ++j) weights[i][j] -= start[i][j];
    r.change[i] = ratio(norm(weights[i]), norm(start[i]));
  }
  r.change_apart = ratio(distance(weights[1], weights[0]), norm(weights[0]));
  r.cosine = ratio(sum(weights[0].size(), [&](std::size_t i) { return double(weights[0][i]) * double(weights[1][i]); }),
                   norm(weights[0]) * norm(weights[1]));
  return r;
}

}  // namespace trainer
