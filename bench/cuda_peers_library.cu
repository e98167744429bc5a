// lanewise on the GPU behind a C interface, for bench/cuda_peers.py: bf16, head dims 64, 128 and 256, full or causal.
//
// Tensors are [batch, sequence, heads, head_dim], dense, on the current device. Functions launch in the given stream
// and return null, or a sentence that says what was wrong (valid until the next call).
#include <cstdint>
#include <lanewise/attention.cuh>
#include <lanewise/variants/causal.hpp>
#include <string>

/// Not in the namespace below, which would make every function that takes it local to this file.
struct problem {
  std::int64_t batch, sequence, heads, head_dim, causal;
};

namespace {

using namespace lanewise;

std::string last_error;

char const* report(status const& s) {
  if (s) return nullptr;
  last_error = s.message();
  return last_error.c_str();
}

extents size_of(problem const& p) { return {p.batch, p.sequence, p.heads, p.head_dim}; }
extents lse_size(problem const& p) { return {p.batch, p.sequence, p.heads, 1}; }

/// call.operator()<C>(variant) for the config and the variant that `p` names.
template <class Call>
status with_config(problem const& p, Call const& call) {
  return dispatch<64, 128, 256>(p.head_dim, [&]<int D> {
    constexpr config c{.head_dim = D, .precision = precision::bf16};
    return p.causal ? call.template operator()<c>(causal_top_left{}) : call.template operator()<c>(full{});
  });
}

}  // namespace

extern "C" {

/// Bytes of scratch for the backward, negative when the shape is not compiled.
std::int64_t lanewise_cuda_workspace(problem const* p) {
  std::size_t bytes = 0;
  status const s = with_config(*p, [&]<config C>(auto const& variant) {
    bytes = backward_workspace<C>(target_of(on_cuda{}), size_of(*p), size_of(*p), variant);
    return status{};
  });
  return s ? std::int64_t(bytes) : -1;
}

char const* lanewise_cuda_forward(problem const* p, bf16 const* q, bf16 const* k, bf16 const* v, bf16* o, float* lse,
                                  CUstream_st* stream) {
  extents const e = size_of(*p);
  return report(with_config(*p, [&]<config C>(auto const& variant) {
    return forward<C>(on_cuda{stream}, {.q = {q, e}, .k = {k, e}, .v = {v, e}, .o = {o, e}, .lse = {lse, lse_size(*p)}},
                      variant);
  }));
}

char const* lanewise_cuda_backward(problem const* p, bf16 const* q, bf16 const* k, bf16 const* v, bf16 const* o,
                                   float const* lse, bf16 const* d_o, bf16* d_q, bf16* d_k, bf16* d_v, void* scratch,
                                   std::int64_t scratch_bytes, CUstream_st* stream) {
  extents const e = size_of(*p);
  return report(with_config(*p, [&]<config C>(auto const& variant) {
    return backward<C>(on_cuda{stream},
                       {.q = {q, e},
                        .k = {k, e},
                        .v = {v, e},
                        .o = {o, e},
                        .lse = {lse, lse_size(*p)},
                        .d_o = {d_o, e},
                        .d_q = {d_q, e},
                        .d_k = {d_k, e},
                        .d_v = {d_v, e}},
                       variant, {scratch, std::size_t(scratch_bytes)});
  }));
}

}  // extern "C"
