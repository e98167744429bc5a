#include "attention_site.hpp"

#include <algorithm>
#include <cstring>
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants/causal.hpp>
#include <type_traits>

#include "attention_exact.hpp"
#include "error.hpp"

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

lanewise::extents q_size(attention_shape s) { return {s.batch, s.sequence, s.q_heads, s.head_dim}; }
lanewise::extents kv_size(attention_shape s) { return {s.batch, s.sequence, s.kv_heads, s.head_dim}; }
lanewise::extents lse_size(attention_shape s) { return {s.batch, s.sequence, s.q_heads, 1}; }

std::int64_t pairs(attention_shape s) { return s.batch * s.q_heads * s.sequence * s.sequence; }

/// Byte offsets of the probe's tensors in one buffer.
struct probe_parts {
  std::size_t bytes = 0;
  std::size_t q, k, v, o, lse, d_q, d_k, d_v;
  explicit probe_parts(attention_shape s)
      : q(add(q_size(s))), k(add(kv_size(s))), v(add(kv_size(s))), o(add(q_size(s))), lse(add(lse_size(s))),
        d_q(add(q_size(s))), d_k(add(kv_size(s))), d_v(add(kv_size(s))) {}

 private:
  std::size_t add(lanewise::extents e) {
    std::size_t const at = bytes, align = lanewise::workspace_alignment;
    bytes += (std::size_t(e.count()) * sizeof(float) + align - 1) / align * align;
    return at;
  }
};

}  // namespace

template <class T>
attention_site<T>::attention_site(attention_kind kind, attention_shape shape, workers const& on)
    : kind_(kind), shape_(shape), on_(on) {
  if (kind != attention_kind::flash) return;
  if (!std::is_same_v<T, float>) throw attention_unsupported("flash attention is compiled for float alone");
  require(with_config(shape.head_dim, []<config> { return status{}; }));
}

template <class T>
std::int64_t attention_site<T>::saved_count() const {
  switch (kind_) {
    case attention_kind::flash: return lse_size(shape_).count();
    case attention_kind::exact: return pairs(shape_);
    case attention_kind::ablated: return 0;
  }
  return 0;
}

template <class T>
std::size_t attention_site<T>::forward_scratch() const {
  std::size_t bytes = 0;
  if (kind_ == attention_kind::flash)
    require(with_config(shape_.head_dim, [&]<config C> {
      bytes = lanewise::forward_workspace<C>(lanewise::cpu_target(on_.threads()), q_size(shape_), kv_size(shape_),
                                             lanewise::causal_top_left{});
      return status{};
    }));
  return bytes;
}

template <class T>
std::size_t attention_site<T>::backward_scratch() const {
  std::size_t bytes = kind_ == attention_kind::exact ? std::size_t(pairs(shape_)) * sizeof(T) : 0;
  if (kind_ == attention_kind::flash)
    require(with_config(shape_.head_dim, [&]<config C> {
      bytes = lanewise::backward_workspace<C>(lanewise::cpu_target(on_.threads()), q_size(shape_), kv_size(shape_),
                                              lanewise::causal_top_left{});
      return status{};
    }));
  return bytes;
}

template <class T>
void attention_site<T>::forward(attention_inputs<T> const& in, lanewise::view<T> o, T* saved, void* scratch) const {
  if (on_.planning()) return;
  if (kind_ == attention_kind::exact) return exact::forward(on_, shape_, in, o, saved);
  if (kind_ == attention_kind::ablated)
    return on_.each(shape_.batch, [&](std::int64_t b) {
      for (std::int64_t s = 0; s < shape_.sequence; ++s)
        for (std::int64_t h = 0; h < shape_.q_heads; ++h) std::fill_n(o.row(b, s, h), shape_.head_dim, T(0));
    });
  if constexpr (std::is_same_v<T, float>)
    require(with_config(shape_.head_dim, [&]<config C> {
      return lanewise::forward<C>(lanewise::on_cpu(on_.pool()),
                                  {.q = in.q, .k = in.k, .v = in.v, .o = o, .lse = {saved, lse_size(shape_)}},
                                  lanewise::causal_top_left{}, {scratch, forward_scratch()});
    }));
}

template <class T>
void attention_site<T>::backward(attention_inputs<T> const& in, lanewise::view<T const> o, T const* saved,
                                 lanewise::view<T const> d_o, attention_gradients<T> const& out, void* scratch) const {
  if (on_.planning()) return;
  if (kind_ == attention_kind::exact)
    return exact::backward(on_, shape_, in, saved, d_o, out, static_cast<T*>(scratch));
  if (kind_ == attention_kind::ablated)
    return on_.each(shape_.batch, [&](std::int64_t b) {
      for (std::int64_t s = 0; s < shape_.sequence; ++s) {
        for (std::int64_t h = 0; h < shape_.q_heads; ++h) std::fill_n(out.d_q.row(b, s, h), shape_.head_dim, T(0));
        for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
          std::fill_n(out.d_k.row(b, s, h), shape_.head_dim, T(0));
          std::fill_n(out.d_v.row(b, s, h), shape_.head_dim, T(0));
        }
      }
    });
  if constexpr (std::is_same_v<T, float>)
    require(with_config(shape_.head_dim, [&]<config C> {
      return lanewise::backward<C>(lanewise::on_cpu(on_.pool()),
                                   {.q = in.q,
                                    .k = in.k,
                                    .v = in.v,
                                    .o = o,
                                    .lse = {saved, lse_size(shape_)},
                                    .d_o = d_o,
                                    .d_q = out.d_q,
                                    .d_k = out.d_k,
                                    .d_v = out.d_v},
                                   lanewise::causal_top_left{}, {scratch, backward_scratch()});
    }));
}

template <class T>
std::size_t attention_site<T>::probe_bytes() const {
  return kind_ == attention_kind::flash ? probe_parts(shape_).bytes + std::max(forward_scratch(), backward_scratch())
                                        : 0;
}

template <class T>
std::string attention_site<T>::probe(void* memory) const {
  if (kind_ == attention_kind::exact) return "materialised softmax on BLAS";
  if (kind_ == attention_kind::ablated) return "ablated: the output is zero";
  probe_parts const at(shape_);
  auto const part = [&](std::size_t offset) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory) + offset);
  };
  std::memset(memory, 0, at.bytes);
  void* const scratch = part(at.bytes);
  lanewise::extents const q = q_size(shape_), kv = kv_size(shape_);
  std::string names;
  require(with_config(shape_.head_dim, [&]<config C> {
    lanewise::on_cpu const on(on_.pool());
    status s = lanewise::forward<C>(on,
                                    {.q = {part(at.q), q},
                                     .k = {part(at.k), kv},
                                     .v = {part(at.v), kv},
                                     .o = {part(at.o), q},
                                     .lse = {part(at.lse), lse_size(shape_)}},
                                    lanewise::causal_top_left{}, {scratch, forward_scratch()});
    if (!s) return s;
    names = std::string("forward ") + s.kernel;
    s = lanewise::backward<C>(on,
                              {.q = {part(at.q), q},
                               .k = {part(at.k), kv},
                               .v = {part(at.v), kv},
                               .o = {part(at.o), q},
                               .lse = {part(at.lse), lse_size(shape_)},
                               .d_o = {part(at.o), q},
                               .d_q = {part(at.d_q), q},
                               .d_k = {part(at.d_k), kv},
                               .d_v = {part(at.d_v), kv}},
                              lanewise::causal_top_left{}, {scratch, backward_scratch()});
    names += std::string(", backward ") + s.kernel;
    return s;
  }));
  return names;
}

template class attention_site<float>;
template class attention_site<double>;

}  // namespace trainer
