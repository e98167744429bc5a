// What kernels with warpgroups of different roles need beside wgmma: register budgets, barriers of some warps, the
// fence between ordinary stores and what the tensor cores and the copy engine read.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

inline constexpr int warpgroup_threads = 128;

/// Changes the registers of each thread of this warpgroup; all its warps call it. Multiples of 8 in 24 ... 256. Raising
/// waits until other warpgroups have given back enough.
template <int registers>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Ordinary stores of this thread to shared memory are seen by wgmma and TMA after the next barrier.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// What this thread reads from memory from here on is loaded again: cheaper than registers that hold it, where a spill
/// is near.
__device__ __forceinline__ void load_anew() { asm volatile("" ::: "memory"); }

/// Barrier `id` (1 ... 15; 0 is __syncthreads) of one warpgroup.
__device__ __forceinline__ void warpgroup_barrier(int id) {
  asm volatile("barrier.sync.aligned %0, 128;" ::"r"(id) : "memory");
}

/// Barrier `id` of several warpgroups, `threads` in all.
template <int threads>
__device__ __forceinline__ void named_barrier(int id) {
  asm volatile("barrier.sync.aligned %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

/// True for one thread of a warp, the same each time. ptxas knows that no other thread takes the branch; behind a test
/// of the lane it wraps every TMA instruction into a loop over the threads that might be there.
__device__ __forceinline__ bool elect_one() {
  int elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected)::"memory");
  return elected != 0;
}

/// The warpgroup_barrier; true for all where it was true for some thread.
__device__ __forceinline__ bool warpgroup_any(int id, bool x) {
  int some;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %2, 0;\nbarrier.red.or.pred.aligned q, %1, 128, p;\nselp.b32 %0, 1, 0, "
      "q;\n}"
      : "=r"(some)
      : "r"(id), "r"(int(x))
      : "memory");
  return some != 0;
}

}  // namespace lanewise::gpu
