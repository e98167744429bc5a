// cp.async: 16 bytes (or 4) from global to shared memory without passing through registers. Completion is counted in
// groups of the issuing thread; other threads see the data after wait and a barrier.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

/// Copies 16 bytes, or writes 16 zero bytes and reads nothing where `inside` is false. Both addresses 16-byte aligned.
__device__ __forceinline__ void cp_async_16(std::uint32_t to, void const* from, bool inside) {
  int const bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_4(std::uint32_t to, void const* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `Pending` of this thread's groups are under way.
template <int Pending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace lanewise::gpu
