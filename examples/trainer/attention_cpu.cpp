// Attention sites on the CPU: cpu_ops' part of ops.hpp that runs them.
#include <algorithm>
#include <lanewise/attention_cpu.hpp>
#include <type_traits>

#include "attention_exact.hpp"
#include "error.hpp"
#include "ops.hpp"

namespace trainer {
namespace {

using lanewise::config, lanewise::status;

void require(status const& s) {
  if (!s) throw attention_unsupported(s.message());
}

/// call.operator()<config>() for the head dims that are compiled in.
template <class Call>
status with_config(std::int64_t head_dim, Call const& call) {
  return lanewise::dispatch<32, 64, 128>(head_dim,
                                         [&]<int D> { return call.template operator()<config{.head_dim = D}>(); });
}

constexpr char const* exact_name = "materialised softmax on BLAS";
constexpr char const* ablated_name = "ablated: the output is zero";

/// x = 0, row by row: what lies between rows is not the site's.
template <class T>
void zero_rows(workers const& on, lanewise::view<T> x) {
  on.each(x.size.batch, [&](std::int64_t b) {
    for (std::int64_t s = 0; s < x.size.sequence; ++s)
      for (std::int64_t h = 0; h < x.size.heads; ++h) std::fill_n(x.row(b, s, h), x.size.head_dim, T(0));
  });
}

}  // namespace

template <class T>
attention_needs cpu_ops<T>::attention(attention_site const& at) const {
  attention_shape const s = at.shape;
  switch (at.kind) {
    case attention_kind::flash: break;
    case attention_kind::exact: return {s.pairs(), 0, std::size_t(s.pairs()) * sizeof(T)};
    case attention_kind::ablated: return {};
  }
  if (!std::is_same_v<T, float>) throw attention_unsupported("flash attention is compiled for float alone");
  attention_needs needs{.saved = s.lse().count()};
  lanewise::cpu_target const target(on_.threads());
  require(with_config(s.head_dim, [&]<config C> {
    needs.forward_scratch = lanewise::forward_workspace<C>(target, s.q(), s.kv(), variant_of(s.mask, nullptr));
    needs.backward_scratch = lanewise::backward_workspace<C>(target, s.q(), s.kv(), variant_of(s.mask, nullptr));
    return status{};
  }));
  return needs;
}

template <class T>
char const* cpu_ops<T>::attention_forward(attention_site const& at, attention_inputs<T> const& in, lanewise::view<T> o,
                                          T* saved, void* scratch) const {
  attention_shape const s = at.shape;
  if (planning()) return "";
  if (at.kind == attention_kind::exact) {
    exact::forward(on_, s, in, o, saved);
    return exact_name;
  }
  if (at.kind == attention_kind::ablated) {
    zero_rows(on_, o);
    return ablated_name;
  }
  status ran;
  if constexpr (std::is_same_v<T, float>)
    require(with_config(s.head_dim, [&]<config C> {
      return ran = lanewise::forward<C>(lanewise::on_cpu(on_.pool()),
                                        {.q = in.q, .k = in.k, .v = in.v, .o = o, .lse = {saved, s.lse()}},
                                        variant_of(s.mask, in.key_lengths), {scratch, attention(at).forward_scratch});
    }));
  return ran.kernel;
}

template <class T>
char const* cpu_ops<T>::attention_backward(attention_site const& at, attention_inputs<T> const& in,
                                           lanewise::view<T const> o, T const* saved, lanewise::view<T const> d_o,
                                           attention_gradients<T> const& out, void* scratch) const {
  attention_shape const s = at.shape;
  if (planning()) return "";
  if (at.kind == attention_kind::exact) {
    exact::backward(on_, s, in, saved, d_o, out, static_cast<T*>(scratch));
    return exact_name;
  }
  if (at.kind == attention_kind::ablated) {
    zero_rows(on_, out.d_q);
    zero_rows(on_, out.d_k);
    zero_rows(on_, out.d_v);
    return ablated_name;
  }
  status ran;
  if constexpr (std::is_same_v<T, float>)
    require(with_config(s.head_dim, [&]<config C> {
      return ran = lanewise::backward<C>(lanewise::on_cpu(on_.pool()),
                                         {.q = in.q,
                                          .k = in.k,
                                          .v = in.v,
                                          .o = o,
                                          .lse = {saved, s.lse()},
                                          .d_o = d_o,
                                          .d_q = out.d_q,
                                          .d_k = out.d_k,
                                          .d_v = out.d_v},
                                         variant_of(s.mask, in.key_lengths), {scratch, attention(at).backward_scratch});
    }));
  return ran.kernel;
}

template attention_needs cpu_ops<float>::attention(attention_site const&) const;
template attention_needs cpu_ops<double>::attention(attention_site const&) const;
template char const* cpu_ops<float>::attention_forward(attention_site const&, attention_inputs<float> const&,
                                                       lanewise::view<float>, float*, void*) const;
template char const* cpu_ops<double>::attention_forward(attention_site const&, attention_inputs<double> const&,
                                                        lanewise::view<double>, double*, void*) const;
template char const* cpu_ops<float>::attention_backward(attention_site const&, attention_inputs<float> const&,
                                                        lanewise::view<float const>, float const*,
                                                        lanewise::view<float const>, attention_gradients<float> const&,
                                                        void*) const;
template char const* cpu_ops<double>::attention_backward(attention_site const&, attention_inputs<double> const&,
                                                         lanewise::view<double const>, double const*,
                                                         lanewise::view<double const>,
                                                         attention_gradients<double> const&, void*) const;

}  // namespace trainer
