// Attention sites on the GPU: flash through lanewise's instances, exact through cuBLASLt (attention_exact.cu).
#include <lanewise/attention.hpp>

#include "cuda_ops.hpp"
#include "error.hpp"

namespace trainer {
namespace {

using lanewise::config, lanewise::status;

/// call.operator()<config>() for the precisions and head dims that are compiled in; throws attn-unsupported.
template <class Call>
status with_config(arithmetic how, std::int64_t head_dim, Call const& call) {
  using enum lanewise::precision;
  status const s = lanewise::dispatch<32, 64, 128>(head_dim, [&]<int D> {
    switch (how) {
      case arithmetic::bf16: return call.template operator()<site_config(D, bf16)>();
      case arithmetic::tf32: return call.template operator()<site_config(D, tf32)>();
      case arithmetic::f32_split: return call.template operator()<site_config(D, f32_split)>();
      case arithmetic::f32: break;
    }
    return call.template operator()<site_config(D, f32)>();
  });
  if (!s) throw attention_unsupported(s.message());
  return s;
}

/// Bytes of a dense copy of f32 numbers in T; 0: they are read where they are.
template <class T>
constexpr std::size_t copy_bytes(lanewise::extents size) {
  constexpr std::size_t align = lanewise::workspace_alignment;
  return std::is_same_v<T, float> ? 0 : (std::size_t(size.count()) * sizeof(T) + align - 1) / align * align;
}

/// A dense tensor at `room`, which moves on behind it.
template <class T>
lanewise::view<T> take_copy(lanewise::extents size, std::byte*& room) {
  lanewise::view<T> const copy(reinterpret_cast<T*>(room), size);
  room += copy_bytes<T>(size);
  return copy;
}

}  // namespace

attention_needs cuda_ops::attention(attention_site const& at) const {
  attention_shape const& s = at.shape;
  switch (at.kind) {
    case attention_kind::flash: break;
    case attention_kind::exact: return {s.pairs(), 0, std::size_t(s.pairs()) * sizeof(float)};
    case attention_kind::ablated: return {};
  }
  attention_needs needs{.saved = s.lse().count()};
  static_cast<void>(with_config(how_, s.head_dim, [&]<config C> {
    using T = lanewise::element<C>;
    std::size_t const q = copy_bytes<T>(s.q()), kv = copy_bytes<T>(s.kv());
    site_variant const mask = variant_of(s.mask, nullptr);
    needs.forward_scratch = 2 * (q + kv) + lanewise::forward_workspace<C>(target_, s.q(), s.kv(), mask);
    needs.backward_scratch = 3 * q + 2 * kv + lanewise::backward_workspace<C>(target_, s.q(), s.kv(), mask);
    return status{};
  }));
  return needs;
}

/// x as a kernel reads it: itself, or a copy at `room`.
template <class T>
lanewise::view<T const> cuda_ops::as_read(lanewise::view<float const> x, std::byte*& room) const {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    lanewise::view<T> const y = take_copy<T>(x.size, room);
    copy(x, y);
    return y;
  }
}

char const* cuda_ops::attention_forward(attention_site const& at, attention_inputs<float> const& in,
                                        lanewise::view<float> o, float* saved, void* scratch) const {
  attention_shape const& s = at.shape;
  if (planning()) return "";
  if (at.kind == attention_kind::exact) return exact_forward(s, in, o, saved);
  if (at.kind == attention_kind::ablated) return zero_rows({o});
  std::byte *room = static_cast<std::byte*>(scratch), *const end = room + attention(at).forward_scratch;
  return with_config(how_, s.head_dim,
                     [&]<config C> {
                       using T = lanewise::element<C>;
                       lanewise::forward_args<C> args{.q = as_read<T>(in.q, room),
                                                      .k = as_read<T>(in.k, room),
                                                      .v = as_read<T>(in.v, room),
                                                      .lse = {saved, s.lse()}};
                       if constexpr (std::is_same_v<T, float>) args.o = o;
                       else args.o = take_copy<T>(s.q(), room);
                       status const result =
                           lanewise::forward<C>(lanewise::on_cuda{queue_->stream}, args,
                                                variant_of(s.mask, in.key_lengths), {room, std::size_t(end - room)});
                       if constexpr (!std::is_same_v<T, float>) copy(args.o, o);
                       return result;
                     })
      .kernel;
}

char const* cuda_ops::attention_backward(attention_site const& at, attention_inputs<float> const& in,
                                         lanewise::view<float const> o, float const* saved,
                                         lanewise::view<float const> d_o, attention_gradients<float> const& out,
                                         void* scratch) const {
  attention_shape const& s = at.shape;
  if (planning()) return "";
  if (at.kind == attention_kind::exact) return exact_backward(s, in, saved, d_o, out, static_cast<float*>(scratch));
  if (at.kind == attention_kind::ablated) return zero_rows({out.d_q, out.d_k, out.d_v});
  std::byte *room = static_cast<std::byte*>(scratch), *const end = room + attention(at).backward_scratch;
  return with_config(how_, s.head_dim,
                     [&]<config C> {
                       using T = lanewise::element<C>;
                       lanewise::backward_args<C> const args{.q = as_read<T>(in.q, room),
                                                             .k = as_read<T>(in.k, room),
                                                             .v = as_read<T>(in.v, room),
                                                             .o = as_read<T>(o, room),
                                                             .lse = {saved, s.lse()},
                                                             .d_o = as_read<T>(d_o, room),
                                                             .d_q = out.d_q,
                                                             .d_k = out.d_k,
                                                             .d_v = out.d_v};
                       return lanewise::backward<C>(lanewise::on_cuda{queue_->stream}, args,
                                                    variant_of(s.mask, in.key_lengths),
                                                    {room, std::size_t(end - room)});
                     })
      .kernel;
}

}  // namespace trainer
