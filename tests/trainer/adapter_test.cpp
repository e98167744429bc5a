// Adapters: LyCORIS's factorisation and its published sizes, every contraction order against the matrix kron(w1, w2)
// written out, derivatives by finite differences, and what a site costs.
#include "adapter.hpp"

#include "counting_ops.hpp"
#include "projection.hpp"
#include "support.hpp"

using namespace trainer;
using test::relative_error;

namespace {

using pair = std::pair<std::int64_t, std::int64_t>;

/// An adapter on columns `first` ... of rows that are `stride` wide, with numbers in all its tensors.
template <class T>
struct site {
  std::int64_t rows, in, out, first, stride;
  adapter_settings settings;
  parameter_list list;
  adapter change;
  std::vector<double> wide_trained;  // before rounding to T
  std::vector<T> x, trained, d_y;
  lanewise::thread_pool pool{2};
  step_memory memory;

  site(adapter_settings const& s, std::int64_t rows, std::int64_t in, std::int64_t out, std::int64_t first,
       std::int64_t stride, lokr_order order)
      : rows(rows), in(in), out(out), first(first), stride(stride), settings(s), change(s, in, out, "m", list, order),
        x(test::normal<T>(std::size_t(rows * in), 1)), trained(test::normal<T>(std::size_t(list.count()), 2, 0.3)),
        d_y(test::normal<T>(std::size_t(rows * stride), 3)) {
    cpu_ops<T> const planning(workers::planning_for(2));
    memory.graph(0);
    change.forward<T>(planning, memory, rows, nullptr, nullptr, nullptr, stride);
    memory.graph(1);
    change.backward<T>(planning, memory, rows, nullptr, nullptr, nullptr, stride, nullptr, nullptr);
    memory.plan();
    memory.bind();
    memory.poison_released(true);
  }

  std::vector<T> forward() {
    std::vector<T> y(std::size_t(rows * stride), T(1));
    memory.graph(0);
    change.forward<T>(cpu_ops<T>{workers(pool)}, memory, rows, x.data(), trained.data(), y.data() + first, stride);
    return y;
  }
  std::pair<std::vector<T>, std::vector<T>> backward() {
    std::vector<T> d_x(x.size()), gradients(trained.size());
    memory.graph(1);
    change.backward<T>(cpu_ops<T>{workers(pool)}, memory, rows, x.data(), trained.data(), d_y.data() + first, stride,
                       d_x.data(), gradients.data());
    return {d_x, gradients};
  }

  std::vector<double> tensor(std::string const& name) const {
    for (parameter const& p : list.all())
      if (p.name == "m." + name) return {trained.begin() + p.offset, trained.begin() + p.offset + p.count};
    return {};
  }
  static std::vector<double> multiply(std::vector<double> const& a, std::vector<double> const& b, std::int64_t inner) {
    std::size_t const k = std::size_t(inner), m = a.size() / k, n = b.size() / k;
    std::vector<double> c(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t l = 0; l < k; ++l)
        for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + l] * b[l * n + j];
    return c;
  }
  /// dW [out, in], from the definition.
  std::vector<double> matrix() const {
    double const scale = change.scale();
    std::vector<double> w(std::size_t(in * out));
    if (settings.kind == adapter_kind::lora) {
      w = multiply(tensor("lora_B.weight"), tensor("lora_A.weight"), settings.dim);
      for (double& e : w) e *= scale;
      return w;
    }
    lokr_shape const s(in, out, settings.dim, settings.factor);
    std::vector<double> const w1 = tensor("lokr_w1");
    std::vector<double> const w2 =
        s.factorised ? multiply(tensor("lokr_w2_a"), tensor("lokr_w2_b"), s.dim) : tensor("lokr_w2");
    for (std::int64_t l = 0; l < s.out_l; ++l)
      for (std::int64_t k = 0; k < s.out_k; ++k)
        for (std::int64_t m = 0; m < s.in_m; ++m)
          for (std::int64_t n = 0; n < s.in_n; ++n)
            w[std::size_t((l * s.out_k + k) * in + m * s.in_n + n)] =
                scale * w1[std::size_t(l * s.in_m + m)] * w2[std::size_t(k * s.in_n + n)];
    return w;
  }
};

struct sizes {
  adapter_settings settings;
  std::int64_t in, out;
  lokr_order order;
};

/// LoRA, and LoKR in each of its orders: whole and factorised w2, odd sizes, sides that do not factorise.
std::vector<sizes> every_kind() {
  adapter_settings const lora{adapter_kind::lora, 3, 5, 0}, whole{adapter_kind::lokr, 40, 10, 4},
      parts{adapter_kind::lokr, 3, 6, 4};
  return {{lora, 24, 36, lokr_order::w2},  {whole, 24, 36, lokr_order::w2},  {whole, 24, 36, lokr_order::w1},
          {parts, 24, 36, lokr_order::w2}, {parts, 24, 36, lokr_order::mid}, {parts, 24, 36, lokr_order::w1},
          {parts, 35, 22, lokr_order::w2}, {parts, 35, 22, lokr_order::mid}, {parts, 13, 22, lokr_order::w1}};
}

/// One projection of a model: how many layers have it, and its sides.
struct member {
  std::int64_t count, in, out;
};
/// The eleven of a diffusion transformer's layer: self-attention, cross-attention, SwiGLU.
std::vector<member> eleven(std::int64_t layers, std::int64_t hidden, std::int64_t q, std::int64_t kv,
                           std::int64_t ffn) {
  return {{2 * layers, hidden, q},
          {4 * layers, hidden, kv},
          {2 * layers, q, hidden},
          {2 * layers, hidden, ffn},
          {layers, ffn, hidden}};
}
std::vector<member> const xl = eleven(32, 2560, 4096, 1024, 9728), two_b = eleven(24, 2048, 2048, 1024, 6144);

struct census {
  std::int64_t parameters = 0, factorised = 0, tensors = 0, wide = 0;  ///< wide: the short side is 16 or more
};
census count(std::vector<member> const& model, adapter_settings const& s) {
  census c;
  for (member const& m : model) {
    parameter_list list;
    adapter const a(s, m.in, m.out, "m", list);
    c.parameters += m.count * list.count();
    c.tensors += m.count * std::int64_t(list.all().size());
    c.factorised += m.count * (a.legs() == 3);
    for (parameter const& p : list.all()) c.wide += m.count * (std::min(p.shape[0], p.shape[1]) >= 16);
  }
  return c;
}
adapter_settings lokr(std::int64_t dim) { return {adapter_kind::lokr, dim, 0, 6}; }

}  // namespace

TEST_CASE("factorization is LyCORIS's") {
  CHECK(factorization(4096, 6) == pair(4, 1024));
  CHECK(factorization(2560, 6) == pair(5, 512));
  CHECK(factorization(1024, 6) == pair(4, 256));
  CHECK(factorization(9728, 6) == pair(4, 2432));
  CHECK(factorization(2048, 6) == pair(4, 512));
  CHECK(factorization(6144, 6) == pair(6, 1024));
  // Values of lycoris.functional.general.factorization, LyCORIS 3.
  CHECK(factorization(128, -1) == pair(8, 16));
  CHECK(factorization(250, -1) == pair(10, 25));
  CHECK(factorization(360, -1) == pair(18, 20));
  CHECK(factorization(16, 5) == pair(4, 4));
  CHECK(factorization(127, -1) == pair(1, 127));
  CHECK(factorization(4, 8) == pair(2, 2));
}

TEST_CASE("sizes of published models' adapters") {
  // 1e5: the figures are stated in tenths of a million.
  auto const tenths = [](std::int64_t n) { return (n + 50'000) / 100'000; };
  CHECK(count(xl, lokr(512)).parameters == 228'596'608);
  CHECK(count(xl, lokr(512)).parameters * 4 / (1 << 20) == 872);  // MiB in f32
  CHECK(count(xl, lokr(512)).parameters * 2 / (1 << 20) == 436);  // exported in bf16
  CHECK(count(xl, lokr(512)).factorised == 96);
  CHECK(tenths(count(xl, lokr(256)).parameters) == 1395);
  CHECK(count(xl, lokr(256)).factorised == 224);
  CHECK(tenths(count(xl, lokr(128)).parameters) == 739);
  CHECK(tenths(count(xl, lokr(64)).parameters) == 370);
  CHECK(tenths(count(two_b, lokr(512)).parameters) == 755);
  CHECK(count(two_b, lokr(512)).factorised == 0);
  CHECK(tenths(count(two_b, lokr(256)).parameters) == 661);
  CHECK(count(two_b, lokr(256)).factorised == 72);
  CHECK(count(xl, lokr(512)).wide == 448);
  CHECK(count(xl, lokr(512)).tensors - count(xl, lokr(512)).wide == 352);
  adapter_settings const lora16{adapter_kind::lora, 16, 0, 0};
  CHECK(tenths(count(xl, lora16).parameters) == 398);
  CHECK(tenths(count({xl.begin(), xl.begin() + 3}, lora16).parameters) == 210);
}

TEST_CASE("w2 is whole from half its longer side on; then alpha does not scale it") {
  CHECK(lokr_shape(2560, 9728, 1215, 6).factorised);
  CHECK_FALSE(lokr_shape(2560, 9728, 1216, 6).factorised);
  CHECK(lokr_shape(5, 5, 2, 1).factorised);  // 2 < 2.5
  CHECK_FALSE(lokr_shape(5, 5, 3, 1).factorised);
  parameter_list list;
  CHECK(adapter({adapter_kind::lokr, 512, 7, 6}, 2048, 2048, "m", list).scale() == 1);
  CHECK(adapter({adapter_kind::lokr, 64, 7, 6}, 2048, 2048, "m", list).scale() == 7.0 / 64);
  CHECK(adapter({adapter_kind::lokr, 64, 0, 6}, 2048, 2048, "m", list).scale() == 1);
  CHECK(adapter({adapter_kind::lora, 128, 256, 0}, 2048, 2048, "m", list).scale() == 2);
}

TEST_CASE("the mixing leg stands where the channels are fewest") {
  CHECK(lokr_shape(2560, 1024, 512, 6).cheapest_order() == lokr_order::w2);   // 256 of 256, 512
  CHECK(lokr_shape(2560, 4096, 512, 6).cheapest_order() == lokr_order::w1);   // 512 of 1024, 512
  CHECK(lokr_shape(2560, 9728, 64, 6).cheapest_order() == lokr_order::mid);   // 64 of 2432, 64, 512
  CHECK(lokr_shape(2560, 9728, 512, 6).cheapest_order() == lokr_order::mid);  // 512 of 2432, 512, 512
  CHECK(lokr_shape(9728, 2560, 512, 6).cheapest_order() == lokr_order::w2);   // 512 of 512, 512, 2432
}

TEST_CASE("every order equals the product with dW written out, within 1e-6 in f32") {
  for (sizes const& s : every_kind())
    for (std::int64_t const stride : {s.out, s.out + 7}) {
      site<float> f(s.settings, 150, s.in, s.out, stride > s.out ? 3 : 0, stride, s.order);
      CAPTURE(int(s.order));
      CAPTURE(s.in);
      std::vector<double> const w = f.matrix();
      std::vector<double> expected(f.d_y.size(), 1.0), d_x(f.x.size());
      for (std::int64_t r = 0; r < f.rows; ++r)
        for (std::int64_t o = 0; o < s.out; ++o)
          for (std::int64_t i = 0; i < s.in; ++i) {
            double const e = w[std::size_t(o * s.in + i)];
            expected[std::size_t(r * stride + f.first + o)] += e * double(f.x[std::size_t(r * s.in + i)]);
            d_x[std::size_t(r * s.in + i)] += e * double(f.d_y[std::size_t(r * stride + f.first + o)]);
          }
      std::vector<float> const y = f.forward();
      CHECK(relative_error(y, expected) <= 1e-6);
      for (std::int64_t r = 0; r < f.rows; ++r)  // what lies beside the columns is left alone
        for (std::int64_t o = 0; o < stride; ++o)
          if (o < f.first || o >= f.first + s.out) REQUIRE(y[std::size_t(r * stride + o)] == 1.f);
      CHECK(relative_error(f.backward().first, d_x) <= 1e-6);
    }
}

TEST_CASE("derivatives of every kind and order, by finite differences") {
  for (sizes const& s : every_kind()) {
    site<double> f(s.settings, 5, s.in, s.out, 2, s.out + 3, s.order);
    CAPTURE(int(s.order));
    auto const loss = [&] {
      std::vector<double> const y = f.forward();
      return test::dot(y, f.d_y);
    };
    auto const [d_x, gradients] = f.backward();
    test::check_gradient("x", f.x, d_x, loss);
    test::check_gradient("the adapter", f.trained, gradients, loss);
  }
}

TEST_CASE("a new adapter changes nothing, bit for bit, and the loss moves it") {
  for (sizes const& s : every_kind()) {
    site<float> f(s.settings, 20, s.in, s.out, 0, s.out, s.order);
    f.change.initialise(1, 0, f.trained.data());
    for (float y : f.forward()) REQUIRE(y == 1.f);
    parameter const& last = f.list.all().back();
    std::vector<float> const gradients = f.backward().second;
    double norm = 0;
    for (std::int64_t i = 0; i < last.count; ++i) norm += std::abs(double(gradients[std::size_t(last.offset + i)]));
    CHECK(norm > 0);
    for (parameter const& p : f.list.all()) {
      double largest = 0;
      for (std::int64_t i = 0; i < p.count; ++i)
        largest = std::max(largest, std::abs(double(f.trained[std::size_t(p.offset + i)])));
      double const reach = 1 / std::sqrt(double(p.shape[1]));
      if (&p == &last) CHECK(largest == 0);
      else CHECK((largest <= reach && largest > 0.5 * reach));
    }
  }
}

TEST_CASE("a site takes two or three contractions, and their number does not grow with the tokens") {
  for (sizes const& s : every_kind())
    for (auto const& [rows, stride] : {std::pair(1, s.out), std::pair(300, s.out), std::pair(300, s.out + 7)}) {
      site<float> f(s.settings, rows, s.in, s.out, 0, stride, s.order);
      test::counting_ops<float> const counting(workers{f.pool});
      std::vector<float> y(std::size_t(rows * stride));
      f.memory.graph(0);
      f.change.forward<float>(counting, f.memory, rows, f.x.data(), f.trained.data(), y.data(), stride);
      bool const is_lora = s.settings.kind == adapter_kind::lora;
      CHECK(counting.products + counting.mixes == f.change.legs());
      CHECK(counting.mixes == (is_lora ? 0 : 1));
      CHECK((f.change.legs() == 2 || f.change.legs() == 3));
    }
}

TEST_CASE("the same bits on any number of threads") {
  for (sizes const& s : every_kind()) {
    site<float> f(s.settings, 300, s.in, s.out, 0, s.out, s.order);
    std::vector<float> const y = f.forward();
    auto const gradients = f.backward();
    lanewise::thread_pool five(5);
    std::vector<float> y5(y.size(), 1.f), d_x(f.x.size()), d_w(f.trained.size());
    cpu_ops<float> const op{workers(five)};
    f.memory.graph(0);
    f.change.forward<float>(op, f.memory, f.rows, f.x.data(), f.trained.data(), y5.data(), s.out);
    f.memory.graph(1);
    f.change.backward<float>(op, f.memory, f.rows, f.x.data(), f.trained.data(), f.d_y.data(), s.out, d_x.data(),
                             d_w.data());
    CHECK(y == y5);
    CHECK(gradients == std::pair(d_x, d_w));
  }
}
