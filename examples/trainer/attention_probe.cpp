#include "attention_probe.hpp"

#include <algorithm>

namespace trainer {
namespace {

/// Byte offsets of the probe's tensors in one buffer; scratch is last.
struct parts {
  std::size_t bytes = 0, q, k, v, o, saved, d_q, d_k, d_v, scratch;
  parts(attention_shape s, attention_needs const& needs)
      : q(add(s.q().count())), k(add(s.kv().count())), v(add(s.kv().count())), o(add(s.q().count())),
        saved(add(needs.saved)), d_q(add(s.q().count())), d_k(add(s.kv().count())), d_v(add(s.kv().count())),
        scratch(bytes) {
    bytes += std::max(needs.forward_scratch, needs.backward_scratch);
  }

 private:
  std::size_t add(std::int64_t count) {
    std::size_t const at = bytes, align = lanewise::workspace_alignment;
    bytes += (std::size_t(count) * sizeof(float) + align - 1) / align * align;
    return at;
  }
};

}  // namespace

std::size_t probe_bytes(ops<float> const& op, attention_site const& site) {
  return parts(site.shape, op.attention(site)).bytes;
}

std::string probe_attention(ops<float> const& op, attention_site const& site, void* memory) {
  parts const at(site.shape, op.attention(site));
  auto const part = [&](std::size_t offset) {
    return reinterpret_cast<float*>(static_cast<std::byte*>(memory) + offset);
  };
  op.zero(std::int64_t(at.scratch / sizeof(float)), part(0));
  lanewise::extents const q = site.shape.q(), kv = site.shape.kv();
  attention_inputs<float> const in{{part(at.q), q}, {part(at.k), kv}, {part(at.v), kv}};
  std::string const forward = op.attention_forward(site, in, {part(at.o), q}, part(at.saved), part(at.scratch));
  std::string const backward =
      op.attention_backward(site, in, {part(at.o), q}, part(at.saved), {part(at.o), q},
                            {{part(at.d_q), q}, {part(at.d_k), kv}, {part(at.d_v), kv}}, part(at.scratch));
  return forward == backward ? forward : "forward " + forward + ", backward " + backward;
}

}  // namespace trainer
