// What the replays share: tensors of any strides in memory that is reserved but hardly touched, and the comparison of a
// call on such tensors with the same call on dense ones.
#pragma once

#include <sys/mman.h>

#include <lanewise/variants.hpp>

#include "../support/attention_case.hpp"

namespace testing {

/// A mask given pair by pair, the same for every batch element and head.
struct mask_tensor {
  std::uint8_t const* kept;  ///< [q, keys], 0 or 1
  std::int64_t keys;
  bool operator()(position at) const { return kept[at.q * keys + at.k] != 0; }
};

inline std::vector<std::uint8_t> causal_bytes(std::int64_t n) {
  std::vector<std::uint8_t> kept(static_cast<std::size_t>(n * n));
  for (std::int64_t q = 0; q < n; ++q)
    for (std::int64_t k = 0; k <= q; ++k) kept[q * n + k] = 1;
  return kept;
}

/// A tensor of the given strides. Its pages cost memory only once touched, so that strides may be terabytes. Elements,
/// and below 64 MiB the gaps between them too, start as 0xff bytes: NaN in every storage type.
template <class T>
class spread {
 public:
  spread(extents e, strides s)
      : bytes_(std::size_t((e.batch - 1) * s.batch + (e.sequence - 1) * s.sequence + (e.heads - 1) * s.heads +
                           e.head_dim) *
               sizeof(T)) {
    void* const p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(p != MAP_FAILED);
    madvise(p, bytes_, MADV_NOHUGEPAGE);  // a touched row costs 4 KiB, not 2 MiB
    all_ = view<T>(static_cast<T*>(p), e, s);
    if (small()) std::memset(p, 0xff, bytes_);
    else
      each_row([&](T* row, std::int64_t, std::int64_t, std::int64_t) {
        std::memset(static_cast<void*>(row), 0xff, row_bytes());
      });
  }
  ~spread() { munmap(all_.data, bytes_); }
  spread(spread const&) = delete;
  spread& operator=(spread const&) = delete;

  operator view<T>() const { return all_; }
  operator view<T const>() const requires(!std::is_const_v<T>) { return all_; }

  /// Takes a dense tensor's values, repeated along batch and heads where this one is larger.
  void fill(std::vector<T> const& from, extents e) {
    each_row([&](T* row, std::int64_t b, std::int64_t s, std::int64_t h) {
      std::memcpy(row, row_in(from, e, b, s, h), row_bytes());
    });
  }
  /// Rows that differ from those of a dense tensor, repeated likewise, in any bit.
  std::int64_t differing_rows(std::vector<T> const& from, extents e) const {
    std::int64_t n = 0;
    each_row([&](T* row, std::int64_t b, std::int64_t s, std::int64_t h) {
      n += std::memcmp(row, row_in(from, e, b, s, h), row_bytes()) != 0;
    });
    return n;
  }
  /// Nobody wrote between the elements. Overwrites the elements; says yes without looking from 64 MiB on.
  bool gaps_untouched() {
    if (!small()) return true;
    each_row([&](T* row, std::int64_t, std::int64_t, std::int64_t) {
      std::memset(static_cast<void*>(row), 0xff, row_bytes());
    });
    auto const* const bytes = reinterpret_cast<unsigned char const*>(all_.data);
    return std::all_of(bytes, bytes + bytes_, [](unsigned char b) { return b == 0xff; });
  }

 private:
  bool small() const { return bytes_ < (std::size_t(64) << 20); }
  std::size_t row_bytes() const { return std::size_t(all_.size.head_dim) * sizeof(T); }
  static T const* row_in(std::vector<T> const& x, extents e, std::int64_t b, std::int64_t s, std::int64_t h) {
    return x.data() + ((b % e.batch * e.sequence + s) * e.heads + h % e.heads) * e.head_dim;
  }
  template <class Visit>
  void each_row(Visit const& visit) const {
    for (std::int64_t b = 0; b < all_.size.batch; ++b)
      for (std::int64_t s = 0; s < all_.size.sequence; ++s)
        for (std::int64_t h = 0; h < all_.size.heads; ++h) {
          // not view::row, which is part of what is tested
          std::int64_t const offset = b * all_.stride.batch + s * all_.stride.sequence + h * all_.stride.heads;
          visit(all_.data + offset, b, s, h);
        }
  }

  std::size_t bytes_;
  view<T> all_;
};

/// Strides of each tensor of a call.
struct layout {
  strides q, k, v, o, d_o, d_q, d_k, d_v, lse;
};

constexpr layout dense_layout(extents q, extents k) {
  strides const of_q = dense(q), of_k = dense(k);
  return {of_q, of_k, of_k, of_q, of_q, of_q, of_k, of_k, dense({q.batch, q.sequence, q.heads, 1})};
}

/// Strides of memory that lies [batch, heads, sequence, head_dim].
constexpr strides head_major(extents e) {
  return {e.heads * e.sequence * e.head_dim, e.head_dim, e.sequence * e.head_dim, 1};
}

/// Runs f on tensors of extents q, k laid out as l, whose values are x's, repeated along batch and heads. x has been
/// run under an f that gives each batch element and head the same; every output must agree with x's in every bit.
template <config C, class F>
void check_same(on_cpu on, attention_case<C> const& x, F const& f, extents q, extents k, layout const& l) {
  using E = element<C>;
  using G = gradient<C>;
  extents const lse_size{q.batch, q.sequence, q.heads, 1};
  spread<E> in_q(q, l.q), in_k(k, l.k), in_v(k, l.v), in_d_o(q, l.d_o), o(q, l.o);
  spread<float> lse(lse_size, l.lse), in_d_lse(lse_size, l.lse);
  in_q.fill(x.q, x.q_size), in_k.fill(x.k, x.k_size), in_v.fill(x.v, x.k_size), in_d_o.fill(x.d_o, x.q_size);
  in_d_lse.fill(x.d_lse, x.lse_size);
  {
    scratch_memory const scratch(forward_workspace<C>(target_of(on), q, k, f));
    status const s =
        forward<C>(on, {.q = in_q, .k = in_k, .v = in_v, .o = o, .lse = lse, .scale = x.scale}, f, scratch);
    REQUIRE_MESSAGE(bool(s), s.message());
  }
  spread<G> d_q(q, l.d_q), d_k(k, l.d_k), d_v(k, l.d_v);
  {
    scratch_memory const scratch(backward_workspace<C>(target_of(on), q, k, f));
    backward_args<C> a{.q = in_q,
                       .k = in_k,
                       .v = in_v,
                       .o = o,
                       .lse = lse,
                       .d_o = in_d_o,
                       .d_q = d_q,
                       .d_k = d_k,
                       .d_v = d_v,
                       .scale = x.scale};
    if (x.with_d_lse) a.d_lse = in_d_lse;
    status const s = backward<C>(on, a, f, scratch);
    REQUIRE_MESSAGE(bool(s), s.message());
  }
  CHECK(o.differing_rows(x.o, x.q_size) == 0);
  CHECK(lse.differing_rows(x.lse, x.lse_size) == 0);
  CHECK(d_q.differing_rows(x.d_q, x.q_size) == 0);
  CHECK(d_k.differing_rows(x.d_k, x.k_size) == 0);
  CHECK(d_v.differing_rows(x.d_v, x.k_size) == 0);
  CHECK(o.gaps_untouched());
  CHECK(lse.gaps_untouched());
  CHECK(d_q.gaps_untouched());
  CHECK(d_k.gaps_untouched());
  CHECK(d_v.gaps_untouched());
}

template <config C, class F>
void check_same(on_cpu on, attention_case<C> const& x, F const& f, layout const& l) {
  check_same(on, x, f, x.q_size, x.k_size, l);
}

template <config C>
bool all_finite(attention_case<C> const& x) {
  return all_finite(x.o) && all_finite(x.lse) && all_finite(x.d_q) && all_finite(x.d_k) && all_finite(x.d_v);
}

template <class T>
bool all_equal(T const* x, std::int64_t n, float value) {
  return std::all_of(x, x + n, [value](T e) { return to_float(e) == value; });
}

/// Rows `from`, `from` + `step`, ... of a dense [1, sequence, heads, head_dim] tensor, dense.
template <class T>
std::vector<T> every_row(std::vector<T> const& x, std::int64_t row, std::int64_t from, std::int64_t step,
                         std::int64_t count) {
  std::vector<T> y;
  for (std::int64_t i = 0; i < count; ++i)
    y.insert(y.end(), x.begin() + (from + i * step) * row, x.begin() + (from + i * step + 1) * row);
  return y;
}

}  // namespace testing
