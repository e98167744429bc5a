// How kernels start: one entry point for every kernel struct, its shared memory, errors as statuses. A kernel struct K
// has
//   K::problem     what it is told, passed by value      K::threads, K::shared_bytes
//   K(problem, shared base).run(unit)                    the work of one block; units are blocks of a one-dimensional
//   grid
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../attention.hpp"
#include "tile/shared_tile.cuh"

namespace lanewise::gpu {

/// K is a type, never a config: a class-type value as the template argument of a __global__ function breaks the host
/// stub that nvcc 13.0 writes.
template <class K>
__global__ void __launch_bounds__(K::threads, 1) kernel(__grid_constant__ typename K::problem const p) {
  extern __shared__ __align__(128) unsigned char shared[];
  K(p, shared_address(shared)).run(std::int64_t(blockIdx.x));
}

inline status device_failure(char const* what, cudaError_t error) {
  return fail(status_code::device_error, what, ": ", cudaGetErrorString(error));
}

/// Starts `units` blocks of K; nothing to do is no launch. A grid has one dimension, of up to 2^31 - 1 blocks.
template <class K>
status launch(on_cuda on, std::int64_t units, typename K::problem p) noexcept {
  if (units == 0) return {};
  if (units > 0x7fffffff)
    return fail(status_code::unsupported, "the call needs ", units, " blocks, a grid has at most 2147483647");
  if (K::shared_bytes > 48 * 1024) {
    cudaError_t const error =
        cudaFuncSetAttribute(kernel<K>, cudaFuncAttributeMaxDynamicSharedMemorySize, K::shared_bytes);
    if (error != cudaSuccess) return device_failure(K::name, error);
  }
  void* arguments[] = {&p};
  cudaError_t const error =
      cudaLaunchKernel(reinterpret_cast<void const*>(kernel<K>), dim3(unsigned(units)), dim3(K::threads), arguments,
                       K::shared_bytes, reinterpret_cast<cudaStream_t>(on.stream));
  return error == cudaSuccess ? status{} : device_failure(K::name, error);
}

/// Every row of every head starts at a multiple of 16 bytes, so that it can be copied 16 bytes at a time.
template <class T>
bool aligned_to_16(view<T> const& x) {
  auto const whole = [](std::int64_t elements) { return elements * std::int64_t(sizeof(T)) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && whole(x.stride.batch) && whole(x.stride.sequence) &&
         whole(x.stride.heads);
}

}  // namespace lanewise::gpu
