// What the engine asks of a device, through the CUDA runtime.
#pragma once

#include <cuda_runtime.h>

#include "../attention.hpp"

namespace lanewise {

/// Emitted wherever this header is seen: files that include attention.hpp alone link against it.
[[gnu::used]] inline cuda_target target_of(on_cuda) noexcept {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return {};
  bool const known = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
  return known ? cuda_target{10 * major + minor, multiprocessors} : cuda_target{};
}

}  // namespace lanewise
