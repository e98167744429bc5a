// An attention_case on the GPU: inputs copied there, outputs and workspaces filled with NaN and fenced, results copied
// back into the case, so that the comparisons of the CPU tests serve here too.
#pragma once

#include <cuda_runtime.h>

#include <cstring>
#include <utility>

#include "../support/attention_case.hpp"

namespace testing {

inline void check_cuda(cudaError_t error) { REQUIRE_MESSAGE(error == cudaSuccess, cudaGetErrorString(error)); }

/// Device memory filled with 0xff bytes, with a fence behind it that check() looks at.
class device_memory {
 public:
  explicit device_memory(std::size_t bytes) : bytes_(bytes) {
    check_cuda(cudaMalloc(&data_, bytes + fence));
    check_cuda(cudaMemset(data_, 0xff, bytes + fence));
  }
  device_memory(void const* from, std::size_t bytes) : device_memory(bytes) {
    if (bytes > 0) check_cuda(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice));
  }
  device_memory(device_memory&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~device_memory() { cudaFree(data_); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  operator workspace() const { return {data_, bytes_}; }
  std::size_t bytes() const { return bytes_; }

  template <class T>
  void read(std::vector<T>& to) const {
    if (!to.empty()) check_cuda(cudaMemcpy(to.data(), data_, to.size() * sizeof(T), cudaMemcpyDeviceToHost));
  }
  void check() const {
    std::vector<unsigned char> end(fence);
    check_cuda(cudaMemcpy(end.data(), static_cast<std::byte*>(data_) + bytes_, fence, cudaMemcpyDeviceToHost));
    CHECK(std::all_of(end.begin(), end.end(), [](unsigned char x) { return x == 0xff; }));  // nobody wrote past the end
  }

 private:
  static constexpr std::size_t fence = 256;
  std::size_t bytes_;
  void* data_ = nullptr;
};

template <class T>
device_memory on_device(std::vector<T> const& x) {
  return device_memory(x.data(), x.size() * sizeof(T));
}

/// The tensors of a case on the device, dense.
template <config C>
struct device_case {
  using E = element<C>;
  using G = gradient<C>;
  attention_case<C>& host;
  device_memory q, k, v, d_o, d_lse, o, lse, d_q, d_k, d_v;

  explicit device_case(attention_case<C>& c)
      : host(c), q(on_device(c.q)), k(on_device(c.k)), v(on_device(c.v)), d_o(on_device(c.d_o)),
        d_lse(on_device(c.d_lse)), o(on_device(c.o)), lse(on_device(c.lse)), d_q(on_device(c.d_q)),
        d_k(on_device(c.d_k)), d_v(on_device(c.d_v)) {}

  forward_args<C> forward_call() {
    forward_args<C> a = host.forward_call();
    a.q.data = q.as<E>(), a.k.data = k.as<E>(), a.v.data = v.as<E>();
    a.o.data = o.as<E>(), a.lse.data = lse.as<float>();
    return a;
  }
  backward_args<C> backward_call() {
    backward_args<C> a = host.backward_call();
    a.q.data = q.as<E>(), a.k.data = k.as<E>(), a.v.data = v.as<E>(), a.o.data = o.as<E>(),
    a.lse.data = lse.as<float>();
    a.d_o.data = d_o.as<E>(), a.d_lse.data = a.d_lse ? d_lse.as<float>() : nullptr;
    a.d_q.data = d_q.as<G>(), a.d_k.data = d_k.as<G>(), a.d_v.data = d_v.as<G>();
    return a;
  }

  /// Both directions; returns the statuses' kernels.
  template <class F>
  std::pair<char const*, char const*> run(F const& f, forward_args<C> const& fwd, backward_args<C> const& bwd,
                                          cudaStream_t stream = nullptr) {
    on_cuda const on{reinterpret_cast<CUstream_st*>(stream)};
    device_memory const room(forward_workspace<C>(target_of(on), host.q_size, host.k_size, f));
    status const s = forward<C>(on, fwd, f, room);
    REQUIRE_MESSAGE(bool(s), s.message());
    device_memory const scratch(backward_workspace<C>(target_of(on), host.q_size, host.k_size, f));
    status const t = backward<C>(on, bwd, f, scratch);
    REQUIRE_MESSAGE(bool(t), t.message());
    check_cuda(cudaDeviceSynchronize());
    room.check(), scratch.check();
    return {s.kernel, t.kernel};
  }
  template <class F>
  std::pair<char const*, char const*> run(F const& f) {
    auto const kernels = run(f, forward_call(), backward_call());
    fetch();
    return kernels;
  }

  void fetch() {
    o.read(host.o), lse.read(host.lse), d_q.read(host.d_q), d_k.read(host.d_k), d_v.read(host.d_v);
    for (device_memory const* m : {&o, &lse, &d_q, &d_k, &d_v}) m->check();
  }
};

}  // namespace testing
