// Attention sites on the GPU: flash through lanewise's instances, exact through cuBLAS (attention_exact.cu).
#include <lanewise/attention.hpp>

#include "cuda_ops.hpp"
#include "error.hpp"

namespace trainer {
namespace {

using lanewise::config, lanewise::status;

/// call.operator()<config>() for the precisions and head dims that are compiled in; throws attn-unsupported.
template <class Call>
status with_config(arithmetic how, std::int64_t head_dim, Call const& call) {
  status const s = lanewise::dispatch<32, 64, 128>(head_dim, [&]<int D> {
    switch (how) {
      case arithmetic::tf32:
        return call.template operator()<config{.head_dim = D, .precision = lanewise::precision::tf32}>();
      case arithmetic::f32_split:
        return call.template operator()<config{.head_dim = D, .precision = lanewise::precision::f32_split}>();
      case arithmetic::f32: break;
    }
    return call.template operator()<config{.head_dim = D, .precision = lanewise::precision::f32}>();
  });
  if (!s) throw attention_unsupported(s.message());
  return s;
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
    needs.forward_scratch = lanewise::forward_workspace<C>(target_, s.q(), s.kv(), variant_of(s.mask, nullptr));
    needs.backward_scratch = lanewise::backward_workspace<C>(target_, s.q(), s.kv(), variant_of(s.mask, nullptr));
    return status{};
  }));
  return needs;
}

char const* cuda_ops::attention_forward(attention_site const& at, attention_inputs<float> const& in,
                                        lanewise::view<float> o, float* saved, void* scratch) const {
  attention_shape const& s = at.shape;
  if (planning()) return "";
  if (at.kind == attention_kind::exact) return exact_forward(s, in, o, saved);
  if (at.kind == attention_kind::ablated) return zero_rows({o});
  return with_config(how_, s.head_dim,
                     [&]<config C> {
                       return lanewise::forward<C>(lanewise::on_cuda{queue_->stream},
                                                   {.q = in.q, .k = in.k, .v = in.v, .o = o, .lse = {saved, s.lse()}},
                                                   variant_of(s.mask, in.key_lengths),
                                                   {scratch, attention(at).forward_scratch});
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
  return with_config(how_, s.head_dim,
                     [&]<config C> {
                       return lanewise::backward<C>(lanewise::on_cuda{queue_->stream},
                                                    {.q = in.q,
                                                     .k = in.k,
                                                     .v = in.v,
                                                     .o = o,
                                                     .lse = {saved, s.lse()},
                                                     .d_o = d_o,
                                                     .d_q = out.d_q,
                                                     .d_k = out.d_k,
                                                     .d_v = out.d_v},
                                                    variant_of(s.mask, in.key_lengths),
                                                    {scratch, attention(at).backward_scratch});
                     })
      .kernel;
}

}  // namespace trainer
