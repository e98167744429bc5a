// parity: runs attention on a safetensors file, compares it with an f64 reference, proves a grid of cases.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <lanewise/cpu/thread_pool.hpp>
#include <stdexcept>

#include "../common/safetensors.hpp"
#include "compare.hpp"
#include "cuda.hpp"
#include "grid.hpp"
#include "request.hpp"

namespace parity {

namespace {

std::map<std::string, lanewise::precision> precisions() {
  std::map<std::string, lanewise::precision> r;
  for (auto p : {lanewise::precision::f32, lanewise::precision::tf32, lanewise::precision::f16,
                 lanewise::precision::bf16, lanewise::precision::bf16_split, lanewise::precision::f32_split})
    r[name_of(p)] = p;
  return r;
}

void add_call_options(CLI::App& app, request& r) {
  app.add_option("IN", r.in,
                 "q [B,Sq,Hq,D], k, v [B,Sk,Hkv,D]; optional d_o, d_lse, bias, sink, alibi_slopes, kv_lengths, "
                 "kv_keep, cu_seqlens_q/k")
      ->required();
  app.add_option(
         "--mask", r.masks,
         "masks that must all keep a pair, separated by commas: full, causal_top_left, causal_bottom_right, window,\n"
         "window_bottom_right, key_padding (kv_lengths [B]), self_padding (kv_lengths), key_padding_bits (kv_keep "
         "[B,Sk]),\n"
         "documents (cu_seqlens_q, cu_seqlens_k [N+1])")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--window", r.window,
                 "keys to the left and right of the diagonal, both inclusive, for --mask window; inf: no end");
  app.add_option("--softcap", r.softcap, "scores become CAP tanh(s / CAP)")->check(CLI::PositiveNumber);
  app.add_option(
         "--alibi", r.alibi,
         "linear biases, aligned top_left (the value when none is given) or bottom_right; slopes from the tensor\n"
         "alibi_slopes [H] or 2^(-8 (h + 1) / H)")
      ->expected(0, 1)
      ->default_str("top_left");
  app.add_option("--scale", r.scale, "of q.k; 1/sqrt(D) unless given");
  app.add_option_function<std::string>(
         "--precision", [&r](std::string const& name) { r.precision = precisions().at(name); },
         "q's type unless given; tensors of another type are converted")
      ->check(CLI::IsMember(precisions()));
  app.add_option("--gradient", r.gradient, "type of dq, dk, dv: storage or f32")
      ->check(CLI::IsMember({"storage", "f32"}))
      ->capture_default_str();
  app.add_option("--empty-lse", r.empty_lse, "LSE of a row without keys: zero or minus_infinity")
      ->check(CLI::IsMember({"zero", "minus_infinity"}))
      ->capture_default_str();
  app.add_option(
      "--layout", r.layout,
      "order of a tensor's dimensions in the file, outermost first: q=bhsd,k=bshd,lse=bhs; bshd unless given.\n"
      "Also for what is written: o, lse, dq, dk, dv");
}

void add_device_options(CLI::App& app, request& r) {
  app.add_option("--device", r.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  app.add_option("--threads", r.threads, "threads; every core unless given")->check(CLI::Range(1, 4096));
}

device device_of(request const& r) {
  if (r.device == "cpu") return device::cpu;
  require_cuda();
  return device::cuda;
}

lanewise::on_cpu backend(lanewise::thread_pool& pool, request const& r) { return {pool, isa_of(r.isa)}; }

void show(problem const& p, outputs const& out, std::vector<std::string> const& remarks) {
  for (std::string const& remark : remarks) std::fprintf(stderr, "note: %s\n", remark.c_str());
  std::printf("q %s, k %s, %s, scale %.7g; %s%s%s\n", text_of(p.q.size).c_str(), text_of(p.k.size).c_str(),
              name_of(p.precision), p.scale, out.forward_kernel.c_str(), out.backward_kernel.empty() ? "" : ", ",
              out.backward_kernel.c_str());
}

int run_file(request const& r) {
  device const where = device_of(r);
  auto const file = safetensors::read(r.in);
  std::vector<std::string> remarks;
  problem p = problem_of(file, r, remarks);
  p.device = where;
  outputs out = outputs_of(p, r);
  lanewise::thread_pool pool(threads_of(r));
  run(p, out, backend(pool, r));
  show(p, out, remarks);
  auto const result = file_of(p, out, r);
  safetensors::write(r.out, result);
  std::printf("wrote %s:", r.out.c_str());
  for (auto const& [name, t] : result.tensors)
    std::printf(" %s %s %s", name.c_str(), t.dtype.c_str(), safetensors::text_of(t.shape).c_str());
  std::printf("\n");
  return 0;
}

/// Rows for the tensors of a second file, say PyTorch's, against the same reference.
std::vector<measured> compare_file(safetensors::file const& f, problem const& p, request const& r,
                                   lanewise::reference::result const& exact,
                                   lanewise::reference::result const& rounded) {
  outputs const own = outputs_of(p, r);
  struct tensor {
    char const* name;
    array const& own;
    std::vector<double> const &exact, &rounded;
  };
  tensor const known[] = {{"o", own.o, exact.o, rounded.o},
                          {"lse", own.lse, exact.lse, rounded.lse},
                          {"dq", own.d_q, exact.d_q, rounded.d_q},
                          {"dk", own.d_k, exact.d_k, rounded.d_k},
                          {"dv", own.d_v, exact.d_v, rounded.d_v}};
  std::vector<measured> rows;
  for (tensor const& t : known) {
    if (!f.tensors.count(t.name) || !t.own) continue;
    array const x = file_array(f, t.name, r);
    if (!(x.size == t.own.size))
      throw std::runtime_error(f.path.string() + ": " + t.name + " is " + text_of(x.size) + ", expected " +
                               text_of(t.own.size) + " in [b, s, h, d]");
    rows.push_back(compare(t.name, x.size, values_of(x), t.exact, &t.rounded, x.type,
                           t.own.size.head_dim > 1 && t.name[0] == 'd', f32_bar_of(p)));
  }
  if (rows.empty()) throw std::runtime_error(f.path.string() + ": holds none of o, lse, dq, dk, dv");
  raise_bars(rows, exponent_error(exact));
  return rows;
}

int check_file(request const& r, std::string const& against) {
  device const where = device_of(r);
  auto const file = safetensors::read(r.in);
  std::vector<std::string> remarks;
  problem p = problem_of(file, r, remarks);
  p.device = where;
  outputs out = outputs_of(p, r);
  {
    lanewise::thread_pool pool(threads_of(r));
    run(p, out, backend(pool, r));
  }
  show(p, out, remarks);
  auto const exact = exact_reference(p, threads_of(r));
  lanewise::reference::result rounded;
  if (needs_rounded(p)) rounded = rounded_reference(p, threads_of(r));
  int failed = 0, passed = 0;
  auto const print = [&](std::vector<measured> const& rows) {
    std::printf("%s\n", header_of_rows().c_str());
    for (measured const& m : rows) {
      std::printf("%s\n", row_of(m).c_str());
      ++(m.result == verdict::pass ? passed : failed);
    }
  };
  std::printf("lanewise against f64\n");
  std::vector<measured> const rows = compare(p, out, exact, rounded);
  print(rows);
  for (std::string const& fault : kernel_faults(p, out, rows)) std::printf("FAIL %s\n", fault.c_str()), ++failed;
  if (!against.empty()) {
    std::printf("%s against f64\n", against.c_str());
    print(compare_file(safetensors::read(against), p, r, exact, rounded));
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed > 0;
}

struct make_options {
  std::string out{};
  std::int64_t batch = 1, heads = 8, kv_heads = 0, q = 128, k = 0, head_dim = 64;
  std::string type = "f32", order = "bshd", distribution = "normal";
  std::uint64_t seed = 1;
  bool forward_only = false, with_bias = false, with_d_lse = false;
};

distribution distribution_of(std::string const& name) {
  return name == "heavy" ? distribution::heavy : name == "normal3" ? distribution::normal3 : distribution::normal;
}

int make_file(make_options const& m) {
  std::int64_t const keys = m.k ? m.k : m.q, kv_heads = m.kv_heads ? m.kv_heads : m.heads;
  number const type = m.type == "bf16" ? number::bf16 : m.type == "f16" ? number::f16 : number::f32;
  char const* const dtype = type == number::bf16 ? "BF16" : type == number::f16 ? "F16" : "F32";
  safetensors::file f;
  auto const add = [&](char const* name, extents size, std::uint64_t stream) {
    array x = make(type, size, m.order);
    fill(x, m.seed + stream, distribution_of(m.distribution));
    std::vector<std::int64_t> shape;
    for (char letter : m.order)
      shape.push_back(letter == 'b'   ? size.batch
                      : letter == 's' ? size.sequence
                      : letter == 'h' ? size.heads
                                      : size.head_dim);
    x.bytes->resize(size.count() * bytes_of(type));
    f.tensors[name] = {dtype, shape, *x.bytes};
  };
  add("q", {m.batch, m.q, m.heads, m.head_dim}, 0);
  add("k", {m.batch, keys, kv_heads, m.head_dim}, 1), add("v", {m.batch, keys, kv_heads, m.head_dim}, 2);
  if (!m.forward_only) add("d_o", {m.batch, m.q, m.heads, m.head_dim}, 3);
  auto const floats = [&](std::int64_t count, std::uint64_t stream) {
    std::vector<float> x(count);
    for (std::int64_t i = 0; i < count; ++i) x[i] = float(normal(m.seed + stream, i));
    return x;
  };
  if (m.with_d_lse)
    f.tensors["d_lse"] = safetensors::make<float>({m.batch, m.q, m.heads}, floats(m.batch * m.q * m.heads, 4));
  if (m.with_bias)
    f.tensors["bias"] = safetensors::make<float>({1, m.heads, m.q, keys}, floats(m.heads * m.q * keys, 5));
  f.metadata = {{"seed", std::to_string(m.seed)}, {"distribution", m.distribution}, {"layout", m.order}};
  safetensors::write(m.out, f);
  std::printf("wrote %s, seed %llu\n", m.out.c_str(), (unsigned long long)m.seed);
  return 0;
}

int main_of(int argc, char** argv) {
  CLI::App app{"Checks lanewise's attention against a reference in f64"};
  app.require_subcommand(1);
  request r;
  auto* const run_command =
      app.add_subcommand("run", "attention, and its gradients where the file has d_o, of a safetensors file");
  add_call_options(*run_command, r);
  run_command->add_option("OUT", r.out, "file to write: o, lse, dq, dk, dv, dbias, dalibi_slopes, dsink")->required();
  add_device_options(*run_command, r);

  std::string against;
  auto* const check_command = app.add_subcommand(
      "check", "compares with the reference, a row a tensor; exit status 1 where one is beyond its bar");
  add_call_options(*check_command, r);
  check_command->add_option(
      "--against", against,
      "file with o, lse, dq, dk, dv of another implementation, to be compared with the same reference");
  add_device_options(*check_command, r);

  grid_options g;
  std::string kind = "normal";
  auto* const grid_command =
      app.add_subcommand("grid", "every case that a backend has to pass; exit status 1 where one fails");
  grid_command->add_flag("--quick", g.quick, "leave out the large cases");
  grid_command
      ->add_option("--distribution", kind,
                   "of q, k, v, d_o: normal (the bar), normal3 (standard deviation 3), heavy (Student's t, 4 degrees)")
      ->check(CLI::IsMember({"normal", "normal3", "heavy"}))
      ->capture_default_str();
  grid_command->add_option("--seed", g.seed, "of the inputs")->capture_default_str();
  grid_command->add_option("--case", g.only, "only cases whose name contains this");
  grid_command->add_option("--upstream", g.upstream, "gradient of the loss; 0 shows that a vacuous case is no pass")
      ->capture_default_str();
  add_device_options(*grid_command, r);

  make_options m;
  auto* const make_command = app.add_subcommand("make", "writes a file of random inputs");
  make_command->add_option("OUT", m.out, "file to write")->required();
  make_command->add_option("--batch", m.batch)->capture_default_str();
  make_command->add_option("--heads", m.heads, "query heads")->capture_default_str();
  make_command->add_option("--kv-heads", m.kv_heads, "key/value heads; as many as query heads unless given");
  make_command->add_option("--queries", m.q, "length of the query sequence")->capture_default_str();
  make_command->add_option("--keys", m.k, "length of the key sequence; that of the queries unless given");
  make_command->add_option("--head-dim", m.head_dim)->capture_default_str();
  make_command->add_option("--type", m.type, "f32, bf16 or f16")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}))
      ->capture_default_str();
  make_command->add_option("--order", m.order, "order of the dimensions")->capture_default_str();
  make_command->add_option("--distribution", m.distribution)
      ->check(CLI::IsMember({"normal", "normal3", "heavy"}))
      ->capture_default_str();
  make_command->add_option("--seed", m.seed)->capture_default_str();
  make_command->add_flag("--forward-only", m.forward_only, "no d_o");
  make_command->add_flag("--with-bias", m.with_bias, "a bias [1, H, Sq, Sk]");
  make_command->add_flag("--with-d-lse", m.with_d_lse, "a gradient of lse");

  CLI11_PARSE(app, argc, argv);
  if (*run_command) return run_file(r);
  if (*check_command) return check_file(r, against);
  if (*make_command) return make_file(m);
  g.device = device_of(r);
  g.distribution = distribution_of(kind);
  g.threads = threads_of(r);
  return run_grid(g) > 0;
}

}  // namespace

}  // namespace parity

int main(int argc, char** argv) {
  try {
    return parity::main_of(argc, argv);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "parity: %s\n", e.what());
    return 2;
  }
}
