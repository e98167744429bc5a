// How the trainer's kernels start and sum.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "cuda_ops.hpp"

namespace trainer::gpu {

inline constexpr int block_threads = 256;

/// Starts `blocks` blocks of `threads` threads; none is no launch. Where the queue is null nothing starts.
template <class... P>
void start(cuda_queue const* queue, void (*kernel)(P...), std::int64_t blocks, dim3 threads,
           std::type_identity_t<P>... arguments) {
  if (!queue || blocks == 0) return;
  if (blocks > 0x7fffffff) throw std::runtime_error("a kernel would need " + std::to_string(blocks) + " blocks");
  kernel<<<dim3(unsigned(blocks)), threads, 0, queue->stream>>>(arguments...);
  require(cudaGetLastError(), "a kernel's launch");
}

/// The sum over the block's threads, in every thread. One call at a time: `room` is free again after the next barrier.
template <class T>
struct block_sum {
  using reduce = cub::BlockReduce<T, block_threads>;
  typename reduce::TempStorage storage;
  T total;
  __device__ T operator()(T mine) {
    __syncthreads();
    T const sum = reduce(storage).Sum(mine);
    if (threadIdx.x == 0) total = sum;
    __syncthreads();
    return total;
  }
};

/// The sum over a warp's lanes, in every lane.
__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
  return x;
}

/// total[i] += scale * the sum of partial[0 ... rows-1][first + i], row by row. i < n.
__global__ void add_partial_rows(std::int64_t rows, std::int64_t n, std::int64_t stride, float scale,
                                 float const* partial, float* total);

}  // namespace trainer::gpu
