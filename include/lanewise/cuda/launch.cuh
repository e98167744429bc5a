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

/// A kernel in sm_90a instructions, with barriers K::signals in static shared memory; its image for other chips is empty
/// and has none, which is how the host tells them apart.
template <class K>
__global__ void __launch_bounds__(K::threads, 1) kernel_sm90a(__grid_constant__ typename K::problem const p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char tiles[];
  __shared__ typename K::signals signals;
  K(p, shared_address(tiles), signals).run();
#endif
}

/// Which image of kernel_sm90a<K> the current device would run.
enum class sm90a_image { runs, not_compiled, other_chip };
template <class K>
sm90a_image image_of() noexcept {
  cudaFuncAttributes image{};
  if (cudaFuncGetAttributes(&image, kernel_sm90a<K>) != cudaSuccess) return sm90a_image::other_chip;
  if (image.sharedSizeBytes > 0) return sm90a_image::runs;
  return image.binaryVersion == 90 ? sm90a_image::not_compiled : sm90a_image::other_chip;
}

inline status device_failure(char const* what, cudaError_t error) {
  return fail(status_code::device_error, what, ": ", cudaGetErrorString(error));
}

/// Starts `blocks` blocks of `function`, which is K's; nothing to do is no launch. A grid has one dimension, of up to
/// 2^31 - 1 blocks.
template <class K, class Function>
status start_blocks(Function* function, on_cuda on, std::int64_t blocks, typename K::problem& p) noexcept {
  if (blocks == 0) return {};
  if (blocks > 0x7fffffff)
    return fail(status_code::unsupported, "the call needs ", blocks, " blocks, a grid has at most 2147483647");
  if (K::shared_bytes > 48 * 1024) {
    cudaError_t const error =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, K::shared_bytes);
    if (error != cudaSuccess) return device_failure(K::name, error);
  }
  void* arguments[] = {&p};
  cudaError_t const error =
      cudaLaunchKernel(reinterpret_cast<void const*>(function), dim3(unsigned(blocks)), dim3(K::threads), arguments,
                       K::shared_bytes, reinterpret_cast<cudaStream_t>(on.stream));
  return error == cudaSuccess ? status{} : device_failure(K::name, error);
}

template <class K>
status launch(on_cuda on, std::int64_t units, typename K::problem p) noexcept {
  return start_blocks<K>(kernel<K>, on, units, p);
}

/// Starts one block on every multiprocessor, or one for each of fewer units; the blocks share the units among them.
template <class K>
status launch_persistent(on_cuda on, std::int64_t units, typename K::problem& p) noexcept {
  if (units > 0x7fffffff)
    return fail(status_code::unsupported, "the call needs ", units, " tiles, a launch takes at most 2147483647");
  int device = 0, multiprocessors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return device_failure(K::name, error);
  return start_blocks<K>(kernel_sm90a<K>, on, units < multiprocessors ? units : multiprocessors, p);
}

/// Every row of every head starts at a multiple of 16 bytes, so that it can be copied 16 bytes at a time.
template <class T>
bool aligned_to_16(view<T> const& x) {
  auto const whole = [](std::int64_t elements) { return elements * std::int64_t(sizeof(T)) % 16 == 0; };
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 && whole(x.stride.batch) && whole(x.stride.sequence) &&
         whole(x.stride.heads);
}

}  // namespace lanewise::gpu
