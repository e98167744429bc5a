// Errors in the Frobenius norm, and the bars that they are held to.
#include "compare.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace parity {

namespace {

double epsilon_of(number type) {
  switch (type) {
    case number::f64: return 0x1p-52;
    case number::f32: return lanewise::epsilon_of<float>;
    case number::f16: return lanewise::epsilon_of<lanewise::f16>;
    case number::bf16: return lanewise::epsilon_of<lanewise::bf16>;
  }
  return 0;
}

double norm_of(std::vector<double> const& x) {
  double sum = 0;
  for (double e : x)
    if (std::isfinite(e)) sum += e * e;  // an LSE may hold -inf
  return std::sqrt(sum);
}

double distance(double x, double r) { return x == r ? 0 : std::abs(x - r); }  // -inf equals -inf

double relative_error(std::vector<double> const& x, std::vector<double> const& r) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += distance(x[i], r[i]) * distance(x[i], r[i]);
  double const norm = norm_of(r);
  if (sum == 0) return 0;
  return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(sum) / norm;
}

double largest_of(std::vector<double> const& x) {
  double largest = 0;
  for (double e : x)
    if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
  return largest;
}

/// What an accumulating run should have left: prior + x, in the type it is stored in.
std::vector<double> added(std::vector<double> x, array const& prior, bool rounding) {
  if (!prior) return x;
  auto const before = values_of(prior);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += before[i];
    if (!rounding) continue;
    if (prior.type == number::f32) x[i] = float(x[i]);
    if (prior.type == number::f16) x[i] = lanewise::to_float(lanewise::from_float<lanewise::f16>(float(x[i])));
    if (prior.type == number::bf16) x[i] = lanewise::to_float(lanewise::from_float<lanewise::bf16>(float(x[i])));
  }
  return x;
}

}  // namespace

char const* name_of(verdict v) {
  switch (v) {
    case verdict::pass: return "pass";
    case verdict::fail: return "FAIL";
    case verdict::vacuous: return "FAIL(vacuous)";
  }
  return "unknown";
}

measured compare(std::string const& tensor, extents size, std::vector<double> const& got,
                 std::vector<double> const& exact, std::vector<double> const* rounded, number type, bool is_gradient,
                 double f32) {
  measured m;
  m.tensor = tensor;
  m.relative = relative_error(got, exact);
  std::int64_t where = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double const error = distance(got[i], exact[i]);
    if (error > m.max_abs || (std::isnan(error) && !std::isnan(m.max_abs))) m.max_abs = error, where = std::int64_t(i);
  }
  std::int64_t const extent[4] = {size.batch, size.sequence, size.heads, size.head_dim};
  for (int x = 3; x >= 0; --x)
    if (extent[x] > 0) m.worst[x] = where % extent[x], where /= extent[x];
  m.reference_error = rounded ? relative_error(*rounded, exact) : 0;
  m.bar = rounded ? 2 * m.reference_error + 2 * epsilon_of(type) : f32;
  if (type == number::f32) m.bar = std::max(m.bar, f32);
  if (is_gradient && !exact.empty() && norm_of(exact) == 0) m.result = verdict::vacuous;
  else m.result = m.relative <= m.bar ? verdict::pass : verdict::fail;
  return m;
}

double exponent_error(lanewise::reference::result const& exact) {
  return 2 * epsilon_of(number::f32) * largest_of(exact.lse);
}

void raise_bars(std::vector<measured>& rows, double least) {
  for (measured& m : rows) {
    m.bar = std::max(m.bar, least);
    if (m.result == verdict::fail && m.relative <= m.bar) m.result = verdict::pass;
  }
}

double f32_bar_of(problem const& p) {
  if (p.device == device::cpu) return f32_bar;
  switch (p.precision) {
    case lanewise::precision::tf32: return 1e-3;
    case lanewise::precision::bf16_split: return 1e-5;
    case lanewise::precision::f32_split: return 2e-6;
    default: return f32_bar;
  }
}

bool needs_rounded(problem const& p) {
  return p.storage() != number::f32 || !p.normal_inputs ||
         (p.backward() && (p.slope.gradient || p.bias.gradient || p.logit.gradient));
}

measured compare_parameter(problem const& p, std::string const& tensor, parameter const& x,
                           std::vector<double> const& exact, std::vector<double> const& rounded) {
  std::vector<double> got(x.gradient->begin(), x.gradient->end());
  if (p.accumulate)
    for (double& e : got) e -= parameter_prior;
  return compare(tensor, {x.size[0], x.size[1], x.size[2], x.size[3]}, got, exact, &rounded, number::f32, true,
                 f32_bar_of(p));
}

namespace {

void add_gradients(std::vector<measured>& rows, problem const& p, outputs const& out,
                   lanewise::reference::result const& exact, lanewise::reference::result const& rounded,
                   outputs const* prior, bool earned) {
  auto const gradient = [&](char const* name, array const& got, array const& before, std::vector<double> const& r,
                            std::vector<double> const& low) {
    std::vector<double> const expected = added(r, before, false);
    std::vector<double> const low_expected = earned ? added(low, before, true) : std::vector<double>{};
    rows.push_back(compare(name, got.size, values_of(got), expected, earned ? &low_expected : nullptr, got.type, true,
                           f32_bar_of(p)));
    if (!r.empty() && norm_of(r) == 0) rows.back().result = verdict::vacuous;  // also where it was added to something
  };
  outputs const none, &base = prior ? *prior : none;
  gradient("dq", out.d_q, base.d_q, exact.d_q, rounded.d_q);
  gradient("dk", out.d_k, base.d_k, exact.d_k, rounded.d_k);
  gradient("dv", out.d_v, base.d_v, exact.d_v, rounded.d_v);
  parameter const* const parameters[] = {&p.slope, &p.bias, &p.logit};
  char const* const names[] = {"dalibi_slopes", "dbias", "dsink"};
  for (std::size_t i = 0; i < exact.parameters.size() && i < 3; ++i)
    if (!exact.parameters[i].empty())
      rows.push_back(compare_parameter(p, names[i], *parameters[i], exact.parameters[i], rounded.parameters.at(i)));
}

}  // namespace

std::vector<measured> compare(problem const& p, outputs const& out, lanewise::reference::result const& exact,
                              lanewise::reference::result const& rounded, outputs const* prior) {
  std::vector<measured> rows;
  bool const earned = p.storage() != number::f32 || !p.normal_inputs;
  double const f32 = f32_bar_of(p);
  rows.push_back(
      compare("o", p.q.size, values_of(out.o), exact.o, earned ? &rounded.o : nullptr, out.o.type, false, f32));
  rows.push_back(compare("lse", p.lse_size(), values_of(out.lse), exact.lse, p.normal_inputs ? nullptr : &rounded.lse,
                         number::f32, false, f32));
  if (p.backward()) add_gradients(rows, p, out, exact, rounded, prior, earned);
  if (!p.normal_inputs) raise_bars(rows, exponent_error(exact));
  return rows;
}

std::vector<std::string> kernel_faults(problem const& p, outputs const& out, std::vector<measured> const& rows) {
  if (p.device == device::cpu) return {};
  std::vector<std::string> faults;
  std::string const word = p.precision == lanewise::precision::f32          ? "ffma f32"
                           : p.precision == lanewise::precision::bf16_split ? "bf16, split"
                           : p.precision == lanewise::precision::f32_split  ? "f32, split"
                                                                            : name_of(p.precision);
  auto const look = [&](char const* direction, std::string const& kernel) {
    if (kernel.rfind("cuda", 0) != 0 || kernel.find(word) == std::string::npos)
      faults.push_back(std::string(direction) + ": the kernel is '" + kernel + "', not one of " + name_of(p.precision));
  };
  look("forward", out.forward_kernel);
  if (p.backward()) look("backward", out.backward_kernel);
  if (p.precision == lanewise::precision::tf32)
    for (measured const& m : rows)
      if (m.tensor != "lse" && m.max_abs > 0 && m.relative < tf32_floor)
        faults.push_back(m.tensor + " is too exact for tf32: another kernel ran");
  return faults;
}

std::string header_of_rows() {
  char text[160];
  std::snprintf(text, sizeof text, "%-14s %12s %12s %12s  %-24s %s", "tensor", "max abs", "relative", "bar", "worst at",
                "result");
  return text;
}

std::string row_of(measured const& m) {
  char where[64], text[200];
  std::snprintf(where, sizeof where, "[%lld, %lld, %lld, %lld]", (long long)m.worst[0], (long long)m.worst[1],
                (long long)m.worst[2], (long long)m.worst[3]);
  std::snprintf(text, sizeof text, "%-14s %12.3e %12.3e %12.3e  %-24s %s", m.tensor.c_str(), m.max_abs, m.relative,
                m.bar, where, name_of(m.result));
  return text;
}

}  // namespace parity
