// Runs a problem on the current GPU through the instances that Meson lists.
#include "cuda.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cuda_instances.hpp"

namespace parity {

using lanewise::config;

namespace {

void check(cudaError_t error, char const* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
void check(lanewise::status const& s, char const* direction) {
  if (!s) throw std::runtime_error(std::string(direction) + ": " + name_of(s.code) + ": " + s.message());
}

/// Device memory, every byte 0xff.
class buffer {
 public:
  explicit buffer(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, bytes + 1), "cudaMalloc");
    check(cudaMemset(data_, 0xff, bytes + 1), "cudaMemset");
  }
  buffer(buffer&& other) noexcept : bytes_(other.bytes_), data_(std::exchange(other.data_, nullptr)) {}
  ~buffer() { cudaFree(data_); }
  void* data() const { return data_; }
  lanewise::workspace get() const { return {data_, bytes_}; }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

/// Host memory as it lies on the device: one copy of each block, whoever points into it.
class mirror {
 public:
  /// The copy of `count` elements that begin at `host`; null for null. What a pointer to non-const may have changed is
  /// copied back by fetch().
  template <class T>
  T* of(T* host, std::size_t count) {
    if (!host) return nullptr;
    std::size_t const bytes = count * sizeof(T);
    auto found = blocks_.find(host);
    if (found == blocks_.end()) {
      found = blocks_.emplace(host, block{buffer(bytes), bytes, nullptr}).first;
      check(cudaMemcpy(found->second.device.data(), host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    if constexpr (!std::is_const_v<T>) found->second.back = host;
    return static_cast<T*>(found->second.device.data());
  }
  template <class T>
  lanewise::view<T> of(array const& x) {
    lanewise::view<T> v = x.as<T>();
    if (!x) return v;
    if constexpr (std::is_const_v<T>) {
      std::byte const* const base = x.bytes->data();
      v.data = reinterpret_cast<T*>(of(base, x.bytes->size())) + x.offset;
    } else {
      v.data = reinterpret_cast<T*>(of(x.bytes->data(), x.bytes->size())) + x.offset;
    }
    return v;
  }
  void fetch() {
    check(cudaDeviceSynchronize(), "the kernels");
    for (auto const& [host, b] : blocks_)
      if (b.back) check(cudaMemcpy(b.back, b.device.data(), b.bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
  }

 private:
  struct block {
    buffer device;
    std::size_t bytes;
    void* back;
  };
  std::map<void const*, block> blocks_;
};

/// The variant with every pointer the device's.
any_variant variant_on(mirror& m, problem const& p) {
  choice c = p.variant;
  auto const table = [&](auto& pointer, auto const& host) { pointer = m.of(host.data(), host.size()); };
  if (c.key_padding.on) table(c.key_padding.f.lengths, std::as_const(p.masks->key_lengths));
  if (c.self_padding.on) table(c.self_padding.f.lengths, std::as_const(p.masks->key_lengths));
  if (c.key_padding_bits.on) table(c.key_padding_bits.f.words, std::as_const(p.masks->key_bits));
  if (c.documents.on) {
    table(c.documents.f.cu_q, std::as_const(p.masks->documents_q));
    table(c.documents.f.cu_k, std::as_const(p.masks->documents_k));
  }
  auto const move = [&](bool on, auto& value, auto& gradient, parameter const& x) {
    if (!on) return;
    value.data = m.of(value.data, x.value->size());
    if (gradient) gradient.data = m.of(gradient.data, x.gradient->size());
  };
  move(c.alibi.on, c.alibi.f.slope, c.alibi.f.d_slope, p.slope);
  move(c.bias.on, c.bias.f.b, c.bias.f.d_b, p.bias);
  move(c.sink.on, c.sink.f.logit, c.sink.f.d_logit, p.logit);
  return c.variant();
}

template <config C>
void run_instance(problem const& p, outputs& out) {
  using E = lanewise::element<C>;
  using G = lanewise::gradient<C>;
  lanewise::on_cuda const on{};
  lanewise::cuda_target const target = target_of(on);
  mirror m;
  any_variant const f = variant_on(m, p);
  lanewise::forward_args<C> const forward{.q = m.of<E const>(p.q),
                                          .k = m.of<E const>(p.k),
                                          .v = m.of<E const>(p.v),
                                          .o = m.of<E>(out.o),
                                          .lse = m.of<float>(out.lse),
                                          .scale = p.scale};
  buffer const room(lanewise::forward_workspace<C>(target, p.q.size, p.k.size, f));
  lanewise::status done = lanewise::forward<C>(on, forward, f, room.get());
  check(done, "forward");
  out.forward_kernel = done.kernel;
  if (p.backward()) {
    lanewise::backward_args<C> const backward{.q = forward.q,
                                              .k = forward.k,
                                              .v = forward.v,
                                              .o = forward.o,
                                              .lse = forward.lse,
                                              .d_o = m.of<E const>(p.d_o),
                                              .d_lse = m.of<float const>(p.d_lse),
                                              .d_q = m.of<G>(out.d_q),
                                              .d_k = m.of<G>(out.d_k),
                                              .d_v = m.of<G>(out.d_v),
                                              .accumulate = p.accumulate,
                                              .scale = p.scale};
    buffer const scratch(lanewise::backward_workspace<C>(target, p.q.size, p.k.size, f));
    done = lanewise::backward<C>(on, backward, f, scratch.get());
    check(done, "backward");
    out.backward_kernel = done.kernel;
  }
  m.fetch();
}

/// An f32 precision has f32 gradients either way, and is compiled as `storage`.
lanewise::gradient_type stored_as(lanewise::precision p, lanewise::gradient_type g) {
  return storage_of(p) == number::f32 ? lanewise::gradient_type::storage : g;
}

template <std::size_t... I>
bool dispatch(config wanted, problem const& p, outputs& out, std::index_sequence<I...>) {
  return ((cuda_instances[I] == wanted && (run_instance<cuda_instances[I]>(p, out), true)) || ...);
}

}  // namespace

void require_cuda() {
  int devices = 0;
  check(cudaGetDeviceCount(&devices), "--device cuda: no GPU");
  if (devices == 0) throw std::runtime_error("--device cuda: this machine has no GPU");
}

std::vector<int> cuda_head_dims(lanewise::precision p, lanewise::gradient_type g) {
  std::vector<int> dims;
  for (config const& c : cuda_instances)
    if (c.precision == p && c.gradient == stored_as(p, g) && c.empty_lse == lanewise::empty_lse::zero)
      dims.push_back(c.head_dim);
  return dims;
}

void run_on_cuda(problem const& p, outputs& out) {
  lanewise::gradient_type const gradient = stored_as(p.precision, p.gradient);
  config const wanted{
      .head_dim = int(p.q.size.head_dim), .precision = p.precision, .gradient = gradient, .empty_lse = p.empty_lse};
  if (!dispatch(wanted, p, out, std::make_index_sequence<std::size(cuda_instances)>{}))
    throw not_compiled(p, cuda_head_dims(p.precision, gradient), "examples/parity/meson.build");
}

}  // namespace parity
