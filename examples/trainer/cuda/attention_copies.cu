// Copies between the trainer's f32 and the bf16 of flash attention in that precision.
#include "launch.cuh"

namespace trainer {
namespace gpu {
namespace {

constexpr int copy_warps = 8;

/// y = x, rounded to y's type: a warp for every row of one head.
template <class From, class To>
__global__ void copy_rows(lanewise::view<From const> x, lanewise::view<To> y) {
  std::int64_t const row = std::int64_t(blockIdx.x) * copy_warps + threadIdx.x / 32, heads = x.size.heads;
  std::int64_t const token = row / heads, h = row % heads, b = token / x.size.sequence, s = token % x.size.sequence;
  if (b >= x.size.batch) return;
  From const* const from = x.row(b, s, h);
  To* const to = y.row(b, s, h);
  for (std::int64_t i = threadIdx.x % 32; i < x.size.head_dim; i += 32)
    to[i] = lanewise::from_float<To>(lanewise::to_float(from[i]));
}

}  // namespace
}  // namespace gpu

using namespace gpu;

void cuda_ops::copy(lanewise::view<float const> x, lanewise::view<lanewise::bf16> y) const {
  std::int64_t const rows = x.size.batch * x.size.sequence * x.size.heads;
  start(queue_, copy_rows<float, lanewise::bf16>, workers::piece_count(rows, copy_warps), copy_warps * 32, x, y);
}

void cuda_ops::copy(lanewise::view<lanewise::bf16 const> x, lanewise::view<float> y) const {
  std::int64_t const rows = x.size.batch * x.size.sequence * x.size.heads;
  start(queue_, copy_rows<lanewise::bf16, float>, workers::piece_count(rows, copy_warps), copy_warps * 32, x, y);
}

}  // namespace trainer
