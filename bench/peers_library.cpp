// lanewise on the CPU behind the C interface of peers_interface.hpp: head dims 64 and 128 in f32, bf16 and f16, full or
// causal.
#include "peers_interface.hpp"

#include <lanewise/attention_cpu.hpp>
#include <lanewise/variants/causal.hpp>

namespace {

using namespace lanewise;

struct cpu {
  static on_cpu backend(void* where) { return *static_cast<thread_pool*>(where); }

  template <class Call>
  static status with_config(bench::problem const& p, Call const& call) {
    if (p.mask > 1) return fail(status_code::unsupported, "mask ", p.mask, " is not 0 (full) or 1 (causal)");
    return dispatch<64, 128>(p.head_dim, [&]<int D> {
      auto const with_precision = [&]<precision P> {
        constexpr config c{.head_dim = D, .precision = P};
        return p.mask ? call.template operator()<c>(causal_top_left{}) : call.template operator()<c>(full{});
      };
      switch (precision(p.precision)) {
        case precision::f32: return with_precision.template operator()<precision::f32>();
        case precision::bf16: return with_precision.template operator()<precision::bf16>();
        case precision::f16: return with_precision.template operator()<precision::f16>();
        default: return fail(status_code::unsupported, "precision ", p.precision, " is not f32, bf16 or f16");
      }
    });
  }
};

using calls = bench::calls<cpu>;

}  // namespace

extern "C" {

/// Threads that the calls run on; free it with lanewise_pool_free.
void* lanewise_pool_create(int threads) { return new thread_pool(threads); }
void lanewise_pool_free(void* pool) { delete static_cast<thread_pool*>(pool); }

std::int64_t lanewise_workspace(void* where, bench::problem const* p) { return calls::workspace(where, *p); }

char const* lanewise_forward(void* where, bench::problem const* p, bench::tensor const* tensors, void* scratch,
                             std::int64_t bytes) {
  return calls::forward(where, *p, tensors, {scratch, std::size_t(bytes)});
}

char const* lanewise_backward(void* where, bench::problem const* p, bench::tensor const* tensors, void* scratch,
                              std::int64_t bytes) {
  return calls::backward(where, *p, tensors, {scratch, std::size_t(bytes)});
}

}  // extern "C"
