// One case of the grid: inputs from a seed, the engine, the references, and what must hold bit for bit.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "engine.hpp"
#include "grid.hpp"

namespace parity {

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Which rows see no key and which keys are seen by no row, per batch element. No mask here depends on the head.
struct visibility {
  std::vector<bool> row, key;  ///< [B, Sq], [B, Sk]
};

visibility visibility_of(problem const& p) {
  extents const q = p.q.size, k = p.k.size;
  auto const mask = lanewise::bind(p.variant.mask(), {std::int32_t(q.batch), std::int32_t(q.heads),
                                                      std::int32_t(q.sequence), std::int32_t(k.sequence)});
  visibility v{std::vector<bool>(q.batch * q.sequence), std::vector<bool>(k.batch * k.sequence)};
  for (std::int32_t b = 0; b < q.batch; ++b)
    for (std::int32_t i = 0; i < q.sequence; ++i)
      for (std::int32_t j = 0; j < k.sequence; ++j)
        if (lanewise::keep(mask, {b, 0, i, j})) v.row[b * q.sequence + i] = v.key[b * k.sequence + j] = true;
  return v;
}

/// Calls f(b, s, h, d) for the elements of every row of x that is not live.
template <class F>
void each_dead(array const& x, std::vector<bool> const& live, F const& f) {
  for (std::int64_t b = 0; b < x.size.batch; ++b)
    for (std::int64_t s = 0; s < x.size.sequence; ++s)
      for (std::int64_t h = 0; !live[b * x.size.sequence + s] && h < x.size.heads; ++h)
        for (std::int64_t d = 0; d < x.size.head_dim; ++d) f(b, s, h, d);
}

void poison(array const& x, std::vector<bool> const& live) {
  each_dead(x, live, [&](auto b, auto s, auto h, auto d) { set(x, b, s, h, d, not_a_number); });
}

/// Every element of a dead row equals `value` exactly.
void require_dead(array const& x, std::vector<bool> const& live, double value, char const* name,
                  std::vector<std::string>& faults) {
  std::int64_t wrong = 0;
  each_dead(x, live, [&](auto b, auto s, auto h, auto d) { wrong += at(x, b, s, h, d) != value; });
  if (wrong > 0)
    faults.push_back(std::string(name) + ": " + std::to_string(wrong) + " elements of dead rows are not " +
                     std::to_string(value));
}

array place(number type, extents size, placement how) {
  switch (how) {
    case placement::heads_first: return make(type, size, "bhsd");
    case placement::sequence_first: return make(type, size, "sbhd");
    case placement::padded: {
      std::int64_t const row = size.head_dim + 24;
      return make(type, size, {size.sequence * size.heads * row, size.heads * row, row, 1},
                  size.batch * size.sequence * size.heads * row + 1, 1);
    }
    case placement::broadcast: {
      array x = make(type, {1, size.sequence, size.heads, size.head_dim});
      x.size.batch = size.batch, x.stride.batch = 0;
      return x;
    }
    default: return make(type, size);
  }
}

void place_inputs(problem& p, dimensions const& d, number type, placement how) {
  extents const q{d.batch, d.q, d.heads, d.head_dim}, k{d.batch, d.k, d.kv_heads, d.head_dim};
  if (how == placement::interleaved) {
    if (d.q != d.k || d.heads != d.kv_heads) throw std::runtime_error("an interleaved case needs equal q and k sizes");
    array whole = make(type, {d.batch, d.q, 3 * d.heads, d.head_dim});
    whole.size.heads = d.heads;
    p.q = p.k = p.v = whole;
    p.k.offset = d.heads * d.head_dim, p.v.offset = 2 * d.heads * d.head_dim;
    p.d_o = make(type, q);
    return;
  }
  p.q = place(type, q, how == placement::broadcast ? placement::dense : how);
  p.k = place(type, k, how), p.v = place(type, k, how);
  p.d_o = place(type, q, how == placement::broadcast ? placement::dense : how);
}

outputs place_outputs(problem const& p, placement how) {
  if (how == placement::dense || how == placement::broadcast) return make_outputs(p);
  if (how == placement::interleaved) {
    outputs out = make_outputs(p);
    array whole =
        make(p.gradient_storage(), {p.q.size.batch, p.q.size.sequence, 3 * p.q.size.heads, p.q.size.head_dim});
    whole.size.heads = p.q.size.heads;
    out.d_q = out.d_k = out.d_v = whole;
    out.d_k.offset = p.q.size.heads * p.q.size.head_dim, out.d_v.offset = 2 * out.d_k.offset;
    return out;
  }
  outputs out;
  out.o = place(p.storage(), p.q.size, how);
  out.lse = place(number::f32, p.lse_size(), how);
  out.d_q = place(p.gradient_storage(), p.q.size, how);
  out.d_k = place(p.gradient_storage(), p.k.size, how);
  out.d_v = place(p.gradient_storage(), p.v.size, how);
  return out;
}

void scale_by(array const& x, double factor) {
  if (factor == 1) return;
  for (std::int64_t b = 0; b < x.size.batch; ++b)
    for (std::int64_t s = 0; s < x.size.sequence; ++s)
      for (std::int64_t h = 0; h < x.size.heads; ++h)
        for (std::int64_t d = 0; d < x.size.head_dim; ++d) set(x, b, s, h, d, factor * at(x, b, s, h, d));
}

/// Random values that an accumulating run adds to.
void fill_outputs(outputs const& out, std::uint64_t seed) {
  fill(out.d_q, seed), fill(out.d_k, seed + 1), fill(out.d_v, seed + 2);
}

outputs copy_of(outputs const& out) {
  outputs r = out;
  for (array* x : {&r.o, &r.lse, &r.d_q, &r.d_k, &r.d_v}) *x = converted(*x, x->type);
  return r;
}

/// The same problem with its tensors dense.
problem dense_of(problem p) {
  for (array* x : {&p.q, &p.k, &p.v, &p.d_o}) *x = converted(*x, x->type);
  return p;
}

void require_same(outputs const& x, outputs const& y, std::string const& when, std::vector<std::string>& faults) {
  std::pair<char const*, bool> const equal[] = {{"o", same_bits(x.o, y.o)},
                                                {"lse", same_bits(x.lse, y.lse)},
                                                {"dq", same_bits(x.d_q, y.d_q)},
                                                {"dk", same_bits(x.d_k, y.d_k)},
                                                {"dv", same_bits(x.d_v, y.d_v)}};
  for (auto const& [name, same] : equal)
    if (!same) faults.push_back(std::string(name) + " has other bits " + when);
}

void prepare_parameters(problem const& p) {
  for (parameter const* x : {&p.slope, &p.bias, &p.logit})
    if (x->gradient)
      x->gradient->assign(x->gradient->size(),
                          p.accumulate ? parameter_prior : std::numeric_limits<float>::quiet_NaN());
}

double work_of(dimensions const& d) { return double(d.batch) * d.heads * d.q * d.k * d.head_dim; }

/// Bits that must not depend on the number of threads, on the run, nor on strides.
void check_bits(grid_case const& c, problem const& p, outputs const& out, outputs const& prior, grid_options const& o,
                std::vector<std::string>& faults) {
  auto const rerun = [&](problem const& again, placement how, int threads) {
    lanewise::thread_pool pool(threads);
    outputs r = place_outputs(again, how);
    if (c.accumulate)
      for (auto [to, from] : {std::pair{&r.d_q, &prior.d_q}, {&r.d_k, &prior.d_k}, {&r.d_v, &prior.d_v}})
        *to = converted(*from, from->type);
    prepare_parameters(again);
    run(again, r, {pool, c.isa});
    return r;
  };
  auto const gradients = [&] {
    std::vector<float> all;
    for (parameter const* x : {&p.slope, &p.bias, &p.logit})
      if (x->gradient) all.insert(all.end(), x->gradient->begin(), x->gradient->end());
    return all;
  };
  auto const before = gradients();
  int const other = o.threads == 1 ? 3 : 1;
  std::string const when = p.device == device::cuda ? "in a second run" : "with " + std::to_string(other) + " threads";
  require_same(out, rerun(p, c.accumulate ? placement::dense : c.placement, other), when, faults);
  auto const after = gradients();
  if (std::memcmp(before.data(), after.data(), before.size() * sizeof(float)) != 0)
    faults.push_back("parameter gradients have other bits " + when);
  if (c.placement != placement::dense)
    require_same(out, rerun(dense_of(p), placement::dense, o.threads), "with dense tensors", faults);
}

}  // namespace

char const* name_of(placement p) {
  switch (p) {
    case placement::dense: return "dense";
    case placement::heads_first: return "bhsd";
    case placement::sequence_first: return "sbhd";
    case placement::interleaved: return "interleaved";
    case placement::padded: return "padded";
    case placement::broadcast: return "broadcast";
  }
  return "unknown";
}

std::string text_of(lanewise::precision p, lanewise::gradient_type g) {
  return std::string(name_of(p)) + (g == lanewise::gradient_type::f32 ? ">f32" : "");
}

std::string text_of(dimensions const& d, lanewise::precision p, lanewise::gradient_type g) {
  char text[96];
  std::snprintf(text, sizeof text, "%lld %3lld/%-3lld %5lld %5lld %4d  %s", (long long)d.batch, (long long)d.heads,
                (long long)d.kv_heads, (long long)d.q, (long long)d.k, d.head_dim, text_of(p, g).c_str());
  return text;
}

verdict case_result::result() const {
  bool vacuous = false;
  for (measured const& m : rows) {
    if (m.result == verdict::fail) return verdict::fail;
    vacuous |= m.result == verdict::vacuous;
  }
  return !faults.empty() ? verdict::fail : vacuous ? verdict::vacuous : verdict::pass;
}

problem problem_of(grid_case const& c, grid_options const& o, std::uint64_t seed) {
  problem p;
  place_inputs(p, c.size, storage_of(c.precision), c.placement);
  fill(p.q, seed, o.distribution), fill(p.k, seed + 1, o.distribution), fill(p.v, seed + 2, o.distribution);
  fill(p.d_o, seed + 3, o.distribution);  // the loss is sum(o * w): d_o = w times its gradient
  scale_by(p.d_o, o.upstream);
  if (c.d_lse) {
    p.d_lse = make(number::f32, p.lse_size());
    fill(p.d_lse, seed + 4);
    scale_by(p.d_lse, o.upstream);
  }
  p.scale = lanewise::default_scale(c.size.head_dim);
  p.precision = c.precision, p.device = o.device;
  p.normal_inputs = o.distribution == distribution::normal;
  p.gradient = c.gradient, p.empty_lse = c.empty_lse, p.accumulate = c.accumulate;
  if (c.variant) c.variant(p);
  return p;
}

array expanded(array const& x, std::int64_t heads, bool wrong) {
  extents size = x.size;
  size.heads = heads;
  array r = make(x.type, size);
  std::int64_t const ratio = heads / x.size.heads;
  for (std::int64_t b = 0; b < size.batch; ++b)
    for (std::int64_t s = 0; s < size.sequence; ++s)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t d = 0; d < size.head_dim; ++d)
          set(r, b, s, h, d, at(x, b, s, wrong ? h % x.size.heads : h / ratio, d));
  return r;
}

lanewise::reference::result expanded_reference(problem const& p, int threads, bool wrong) {
  problem wide = p;
  std::int64_t const heads = p.q.size.heads, kv_heads = p.k.size.heads, d = p.q.size.head_dim;
  wide.k = expanded(p.k, heads, wrong), wide.v = expanded(p.v, heads, wrong);
  auto r = exact_reference(wide, threads);
  for (std::vector<double>* x : {&r.d_k, &r.d_v}) {
    std::vector<double> folded(p.k.size.count());
    for (std::size_t i = 0; i < x->size(); ++i) {
      std::int64_t const row = std::int64_t(i) / d, h = row % heads, rest = row / heads;
      folded[(rest * kv_heads + (wrong ? h % kv_heads : h / (heads / kv_heads))) * d + std::int64_t(i) % d] += (*x)[i];
    }
    *x = std::move(folded);
  }
  return r;
}

case_result run_case(grid_case const& c, grid_options const& o, std::uint64_t seed) {
  auto const start = std::chrono::steady_clock::now();
  case_result r;
  r.name = c.name;
  r.sizes = text_of(c.size, c.precision, c.gradient), r.arithmetic = text_of(c.precision, c.gradient);
  if (!lanewise::cpu::kernels_for(c.isa)) {
    r.skipped = "this processor lacks the instruction set";
    return r;
  }
  problem const p = problem_of(c, o, seed);
  visibility const live = visibility_of(p);
  for (bool alive : live.row) r.dead_rows += !alive;
  for (bool alive : live.key) r.dead_keys += !alive;
  if (c.dead_rows && r.dead_rows == 0) r.faults.push_back("the mask leaves no dead row: the case tests nothing");
  if (c.dead_keys && r.dead_keys == 0) r.faults.push_back("the mask leaves no dead key: the case tests nothing");
  poison(p.q, live.row), poison(p.d_o, live.row);
  if (c.placement != placement::broadcast) poison(p.k, live.key), poison(p.v, live.key);

  outputs out = place_outputs(p, c.placement);
  outputs prior;
  if (c.accumulate) {
    fill_outputs(out, seed + 8);
    prior = copy_of(out);
  }
  prepare_parameters(p);
  {
    lanewise::thread_pool pool(o.threads);
    run(p, out, {pool, c.isa});
  }
  auto const exact = c.expanded ? expanded_reference(p, o.threads) : exact_reference(p, o.threads);
  lanewise::reference::result rounded;
  if (needs_rounded(p)) rounded = rounded_reference(p, o.threads);
  r.rows = compare(p, out, exact, rounded, c.accumulate ? &prior : nullptr);
  r.kernels = {out.forward_kernel, out.backward_kernel};
  for (std::string& fault : kernel_faults(p, out, r.rows)) r.faults.push_back(std::move(fault));
  if (o.device == device::cuda && c.placement == placement::padded)
    for (std::string const& kernel : r.kernels)
      if (kernel.find("not 16-byte aligned") == std::string::npos)
        r.faults.push_back("rows are not aligned, but the kernel is '" + kernel + "'");
  if (c.zero)
    for (measured& m : r.rows)
      if (m.result == verdict::vacuous && m.max_abs == 0) m.result = verdict::pass;

  require_dead(out.o, live.row, 0, "o", r.faults);
  if (!c.accumulate) {
    require_dead(out.d_q, live.row, 0, "dq", r.faults);
    require_dead(out.d_k, live.key, 0, "dk", r.faults), require_dead(out.d_v, live.key, 0, "dv", r.faults);
  }
  if (!p.variant.sink.on)
    require_dead(out.lse, live.row,
                 c.empty_lse == lanewise::empty_lse::zero ? 0 : -std::numeric_limits<double>::infinity(), "lse",
                 r.faults);
  if (work_of(c.size) <= 2e9) check_bits(c, p, out, prior, o, r.faults);
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

}  // namespace parity
