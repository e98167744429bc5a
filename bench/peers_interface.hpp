// The C interface of the libraries that bench/peers.py loads, the same for every device:
//
//   std::int64_t lanewise_workspace(void* where, problem const*)
//   char const*  lanewise_forward(void* where, problem const*, tensor const* q_k_v_o_lse, void* scratch, int64 bytes)
//   char const*  lanewise_backward(..., tensor const* q_k_v_o_lse_do_dq_dk_dv, ...)
//
// `where` is the device's: a pool of lanewise_pool_create, or a CUDA stream. Tensors are described by four element
// strides in the order batch, sequence, heads, head_dim, so that a caller can pass them as they lie. Scratch is as
// large as lanewise_workspace says, negative where the problem is not compiled, and aligned to 128. Calls return null,
// or a sentence that says what was wrong (valid until the next call).
#pragma once

#include <cstddef>
#include <cstdint>
#include <lanewise/attention.hpp>
#include <string>

namespace bench {

struct problem {
  int precision;  ///< as lanewise::precision counts
  int mask;       ///< 0 full, 1 causal, 2 a window of 128 keys on either side
  std::int64_t batch, q_length, k_length, q_heads, kv_heads, head_dim;
};

struct tensor {
  void* data;
  std::int64_t stride[4];
};

/// The calls on one device. Device has
///   backend(where), the engine's value; with_config(problem, call), the status of call.operator()<C>(variant)
template <class Device>
struct calls {
  static std::int64_t workspace(void* where, problem const& p) {
    std::int64_t bytes = -1;
    report(Device::with_config(p, [&]<lanewise::config C>(auto const& f) {
      auto const target = target_of(Device::backend(where));
      std::size_t const a = lanewise::forward_workspace<C>(target, q_size(p), k_size(p), f),
                        b = lanewise::backward_workspace<C>(target, q_size(p), k_size(p), f);
      bytes = std::int64_t(a > b ? a : b);
      return lanewise::status{};
    }));
    return bytes;
  }

  static char const* forward(void* where, problem const& p, tensor const* t, lanewise::workspace scratch) {
    return report(Device::with_config(p, [&]<lanewise::config C>(auto const& f) {
      using T = lanewise::element<C>;
      return lanewise::forward<C>(Device::backend(where),
                                  {.q = as<T const>(t[0], q_size(p)),
                                   .k = as<T const>(t[1], k_size(p)),
                                   .v = as<T const>(t[2], k_size(p)),
                                   .o = as<T>(t[3], q_size(p)),
                                   .lse = as<float>(t[4], lse_size(p))},
                                  f, scratch);
    }));
  }

  static char const* backward(void* where, problem const& p, tensor const* t, lanewise::workspace scratch) {
    return report(Device::with_config(p, [&]<lanewise::config C>(auto const& f) {
      using T = lanewise::element<C>;
      using G = lanewise::gradient<C>;
      return lanewise::backward<C>(Device::backend(where),
                                   {.q = as<T const>(t[0], q_size(p)),
                                    .k = as<T const>(t[1], k_size(p)),
                                    .v = as<T const>(t[2], k_size(p)),
                                    .o = as<T const>(t[3], q_size(p)),
                                    .lse = as<float const>(t[4], lse_size(p)),
                                    .d_o = as<T const>(t[5], q_size(p)),
                                    .d_q = as<G>(t[6], q_size(p)),
                                    .d_k = as<G>(t[7], k_size(p)),
                                    .d_v = as<G>(t[8], k_size(p))},
                                   f, scratch);
    }));
  }

 private:
  static char const* report(lanewise::status const& s) {
    static std::string last_error;
    if (s) return nullptr;
    last_error = s.message();
    return last_error.c_str();
  }
  template <class T>
  static lanewise::view<T> as(tensor const& t, lanewise::extents e) {
    return {static_cast<T*>(t.data), e, {t.stride[0], t.stride[1], t.stride[2], t.stride[3]}};
  }
  static lanewise::extents q_size(problem const& p) { return {p.batch, p.q_length, p.q_heads, p.head_dim}; }
  static lanewise::extents k_size(problem const& p) { return {p.batch, p.k_length, p.kv_heads, p.head_dim}; }
  static lanewise::extents lse_size(problem const& p) { return {p.batch, p.q_length, p.q_heads, 1}; }
};

}  // namespace bench
