// lanewise behind a C interface, for bench/peers.py: forward and backward of one shape, full or causal, on the CPU.
//
// Every tensor is described by four element strides in the order batch, sequence, heads, head_dim, so a caller can pass
// tensors as they lie. Functions return null, or a sentence that says what was wrong (valid until the next call).
#include <cstdint>
#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants/causal.hpp>
#include <string>

namespace {

using namespace lanewise;

struct problem {
  int precision;  ///< 0 f32, 1 bf16, 2 f16
  int causal;     ///< 1: key <= query
  std::int64_t batch, q_length, k_length, q_heads, kv_heads, head_dim;
};

struct tensor {
  void* data;
  std::int64_t stride[4];
};

std::string last_error;

char const* report(status const& s) {
  if (s) return nullptr;
  last_error = s.message();
  return last_error.c_str();
}

template <class T>
view<T> as(tensor const& t, extents e) {
  return {static_cast<T*>(t.data), e, {t.stride[0], t.stride[1], t.stride[2], t.stride[3]}};
}

extents q_size(problem const& p) { return {p.batch, p.q_length, p.q_heads, p.head_dim}; }
extents k_size(problem const& p) { return {p.batch, p.k_length, p.kv_heads, p.head_dim}; }
extents lse_size(problem const& p) { return {p.batch, p.q_length, p.q_heads, 1}; }

/// call.operator()<C>(variant) for the config and the variant that `p` names.
template <class Call>
status with_config(problem const& p, Call const& call) {
  return dispatch<64, 128>(p.head_dim, [&]<int D> {
    auto const with_precision = [&]<precision P> {
      constexpr config c{.head_dim = D, .precision = P};
      return p.causal ? call.template operator()<c>(causal_top_left{}) : call.template operator()<c>(full{});
    };
    switch (p.precision) {
      case 0: return with_precision.template operator()<precision::f32>();
      case 1: return with_precision.template operator()<precision::bf16>();
      case 2: return with_precision.template operator()<precision::f16>();
      default: return fail(status_code::unsupported, "precision ", p.precision, " is not 0 (f32), 1 (bf16) or 2 (f16)");
    }
  });
}

}  // namespace

extern "C" {

/// Threads that the calls run on; free it with lanewise_pool_free.
void* lanewise_pool_create(int threads) { return new thread_pool(threads); }
void lanewise_pool_free(void* pool) { delete static_cast<thread_pool*>(pool); }

/// Bytes of scratch for the larger of both directions, to be aligned to 128; negative when the shape is not compiled.
std::int64_t lanewise_workspace(void* pool, problem const* p) {
  std::size_t bytes = 0;
  status const s = with_config(*p, [&]<config C>(auto const& variant) {
    cpu_target const where(static_cast<thread_pool*>(pool)->size());
    std::size_t const a = forward_workspace<C>(where, q_size(*p), k_size(*p), variant);
    std::size_t const b = backward_workspace<C>(where, q_size(*p), k_size(*p), variant);
    bytes = a > b ? a : b;
    return status{};
  });
  return s ? std::int64_t(bytes) : -1;
}

char const* lanewise_forward(void* pool, problem const* p, tensor const* q, tensor const* k, tensor const* v,
                             tensor const* o, tensor const* lse, void* scratch, std::int64_t scratch_bytes) {
  return report(with_config(*p, [&]<config C>(auto const& variant) {
    using T = element<C>;
    return forward<C>(on_cpu(*static_cast<thread_pool*>(pool)),
                      {.q = as<T const>(*q, q_size(*p)),
                       .k = as<T const>(*k, k_size(*p)),
                       .v = as<T const>(*v, k_size(*p)),
                       .o = as<T>(*o, q_size(*p)),
                       .lse = as<float>(*lse, lse_size(*p))},
                      variant, {scratch, std::size_t(scratch_bytes)});
  }));
}

char const* lanewise_backward(void* pool, problem const* p, tensor const* q, tensor const* k, tensor const* v,
                              tensor const* o, tensor const* lse, tensor const* d_o, tensor const* d_q,
                              tensor const* d_k, tensor const* d_v, void* scratch, std::int64_t scratch_bytes) {
  return report(with_config(*p, [&]<config C>(auto const& variant) {
    using T = element<C>;
    return backward<C>(on_cpu(*static_cast<thread_pool*>(pool)),
                       {.q = as<T const>(*q, q_size(*p)),
                        .k = as<T const>(*k, k_size(*p)),
                        .v = as<T const>(*v, k_size(*p)),
                        .o = as<T const>(*o, q_size(*p)),
                        .lse = as<float const>(*lse, lse_size(*p)),
                        .d_o = as<T const>(*d_o, q_size(*p)),
                        .d_q = as<T>(*d_q, q_size(*p)),
                        .d_k = as<T>(*d_k, k_size(*p)),
                        .d_v = as<T>(*d_v, k_size(*p))},
                       variant, {scratch, std::size_t(scratch_bytes)});
  }));
}

}  // extern "C"
