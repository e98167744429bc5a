// Runs the grid and prints it; the mistakes that it must notice.
#include "grid.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <set>
#include <stdexcept>

namespace parity {

namespace {

/// The largest error of a tensor, and the largest multiple of the same-precision reference's.
struct extreme {
  double relative = 0, ratio = 0;
};

/// Counts, and the extremes of every precision and tensor.
struct totals {
  int passed = 0, failed = 0, skipped = 0;
  std::map<std::string, std::map<std::string, extreme>> worst{};
  std::map<std::string, std::set<std::string>> kernels{};

  void take(case_result const& r) {
    if (!r.skipped.empty()) {
      ++skipped;
      return;
    }
    ++(r.result() == verdict::pass ? passed : failed);
    for (std::string const& kernel : r.kernels)
      if (!kernel.empty()) kernels[r.arithmetic].insert(kernel);
    for (measured const& m : r.rows) {
      if (m.result == verdict::vacuous) continue;
      bool const parameter =
          m.tensor != "o" && m.tensor != "lse" && m.tensor != "dq" && m.tensor != "dk" && m.tensor != "dv";
      extreme& e = worst[r.arithmetic][parameter ? "parameters" : m.tensor];
      e.relative = std::max(e.relative, m.relative);
      if (m.reference_error > 0) e.ratio = std::max(e.ratio, m.relative / m.reference_error);
    }
  }

  /// One row a precision: the largest error of each tensor, with its multiple of the same-precision reference's.
  void print() const {
    char const* const tensors[] = {"o", "lse", "dq", "dk", "dv", "parameters"};
    std::printf("\nlargest error of all cases (as a multiple of the same-precision reference's)\n%-16s", "precision");
    for (char const* t : tensors) std::printf(" %-17s", t);
    for (auto const& [arithmetic, row] : worst) {
      std::printf("\n%-16s", arithmetic.c_str());
      for (char const* t : tensors) {
        auto const found = row.find(t);
        char text[32] = "-";
        if (found != row.end() && found->second.ratio > 0)
          std::snprintf(text, sizeof text, "%.2e (%.2f)", found->second.relative, found->second.ratio);
        else if (found != row.end()) std::snprintf(text, sizeof text, "%.2e", found->second.relative);
        std::printf(" %-17s", text);
      }
    }
    std::printf("\n\nkernels that ran\n");
    for (auto const& [arithmetic, names] : kernels)
      for (std::string const& name : names) std::printf("%-16s %s\n", arithmetic.c_str(), name.c_str());
  }
};

/// The tensor nearest to its bar or beyond it.
measured const* worst_of(case_result const& r) {
  measured const* worst = nullptr;
  for (measured const& m : r.rows) {
    bool const bad = m.result != verdict::pass, worse = !worst || !(m.relative / m.bar <= worst->relative / worst->bar);
    if (!worst || (bad && worst->result == verdict::pass) || (bad == (worst->result != verdict::pass) && worse))
      worst = &m;
  }
  return worst;
}

void print(case_result const& r) {
  std::printf("%-44s %-37s", r.name.c_str(), r.sizes.c_str());
  if (!r.skipped.empty()) {
    std::printf(" SKIP: %s\n", r.skipped.c_str());
    return;
  }
  if (measured const* const m = worst_of(r))
    std::printf(" %-13s %9.2e %9.2e %6.1f%%", m->tensor.c_str(), m->relative, m->bar, 100 * m->relative / m->bar);
  else std::printf(" %-13s %9s %9s %7s", "", "", "", "");
  std::printf(" %6.2f  %s\n", r.seconds, name_of(r.result()));
  for (measured const& m : r.rows)
    if (m.result != verdict::pass) std::printf("    %s\n", row_of(m).c_str());
  for (std::string const& fault : r.faults) std::printf("    %s\n", fault.c_str());
  std::fflush(stdout);
}

/// A result that is expected to be wrong: passes where `noticed` says it was.
case_result meta(std::string name, std::string sizes, bool noticed, std::string const& missed) {
  case_result r;
  r.name = "meta: " + std::move(name), r.sizes = std::move(sizes);
  if (!noticed) r.faults.push_back(missed);
  return r;
}

}  // namespace

std::vector<case_result> run_meta_cases(grid_options const& o, std::uint64_t seed) {
  grid_case c;
  c.size = {2, 8, 2, 65, 100, 64};
  std::string const sizes = text_of(c.size, c.precision, c.gradient);
  std::vector<case_result> all;
  grid_options silent = o;
  silent.upstream = 0;
  all.push_back(meta("a zero upstream gradient is vacuous", sizes,
                     run_case(c, silent, seed).result() == verdict::vacuous,
                     "a case whose gradients are all zero was not reported as vacuous"));
  grid_options plain = o;
  plain.upstream = 1, plain.distribution = distribution::normal;
  problem const p = problem_of(c, plain, seed);
  outputs out = make_outputs(p);
  run(p, out, lanewise::on_cpu{});
  auto const failed = [](std::vector<measured> const& rows) {
    return std::any_of(rows.begin(), rows.end(), [](measured const& m) { return m.result == verdict::fail; });
  };
  all.push_back(meta("heads mapped h % Hkv are noticed", sizes,
                     failed(compare(p, out, expanded_reference(p, o.threads, true), {})),
                     "a reference that maps query head h to key head h % Hkv agrees"));
  auto r = exact_reference(p, o.threads);
  r.d_k[r.d_k.size() / 2] += 1e-3;
  all.push_back(meta("one element off by 0.001 is noticed", sizes, failed(compare(p, out, r, {})),
                     "one wrong element of dk was not noticed"));
  return all;
}

int run_grid(grid_options const& o) {
  auto const start = std::chrono::steady_clock::now();
  bool const cpu = o.device == device::cpu;
  std::printf("parity grid on the %s; q, k, v, d_o %s, seed %llu + case; loss = sum(O * W), upstream gradient %g\n",
              cpu ? ("CPU, " + std::to_string(o.threads) + " threads").c_str() : "GPU", name_of(o.distribution),
              (unsigned long long)o.seed, o.upstream);
  std::printf("each row: the tensor nearest to its bar, ||x - r|| / ||r|| against f64\n");
  std::printf("%-44s %-37s %-13s %9s %9s %7s %6s\n", "case", "B  Hq/Hkv   Sq    Sk     D  type", "worst", "relative",
              "bar", "of bar", "s");
  totals sum;
  std::uint64_t seed = o.seed * 1000003;
  auto const wanted = [&](std::string const& name) { return o.only.empty() || name.find(o.only) != std::string::npos; };
  for (grid_case const& c : grid_cases(o.device)) {
    seed += 16;
    double const work = double(c.size.batch) * c.size.heads * c.size.q * c.size.k * c.size.head_dim;
    if (!wanted(c.name) || (o.quick && work > quick_limit)) continue;
    case_result r;
    try {
      r = run_case(c, o, seed);
    } catch (std::exception const& e) {
      r.name = c.name, r.sizes = text_of(c.size, c.precision, c.gradient), r.faults.push_back(e.what());
    }
    print(r), sum.take(r);
  }
  // Stock variants as types: tests/gpu runs them on a GPU, an instance each.
  std::vector<decltype(&run_meta_cases)> groups{run_meta_cases};
  if (cpu) groups = {run_stock_masks, run_stock_scores, run_stock_storage, run_meta_cases};
  for (auto* group : groups)
    for (case_result const& r : group(o, seed += 16))
      if (wanted(r.name)) print(r), sum.take(r);
  double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  sum.print();
  std::printf("%d passed, %d failed, %d skipped in %.0f s\n", sum.passed, sum.failed, sum.skipped, seconds);
  if (sum.passed + sum.failed == 0) throw std::runtime_error("no case ran: nothing matches --case " + o.only);
  return sum.failed;
}

}  // namespace parity
