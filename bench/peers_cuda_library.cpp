// lanewise on the current CUDA device behind the C interface of peers_interface.hpp, for the instances that
// bench/meson.build lists. `where` is a stream.
#include "cuda_rows.hpp"
#include "peers_interface.hpp"

namespace {

using namespace lanewise;

struct cuda {
  static on_cuda backend(void* where) { return {static_cast<CUstream_st*>(where)}; }

  template <class Call>
  static status with_config(bench::problem const& p, Call const& call) {
    status result = fail(status_code::unsupported, "no instance for precision ", p.precision, ", mask ", p.mask,
                         ", head dim ", p.head_dim, " is listed in bench/meson.build");
    bench::cuda_rows::each([&]<class Row> {
      if (Row::c.head_dim == p.head_dim && int(Row::c.precision) == p.precision &&
          int(bench::mask_of<typename Row::variant>) == p.mask)
        result = call.template operator()<Row::c>(bench::variant_of<Row>());
    });
    return result;
  }
};

using calls = bench::calls<cuda>;

}  // namespace

extern "C" {

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
