// Two kernels of a stream that overlap at their ends: the second is launched early (launch.cuh), prepares itself, and
// waits where it needs what the first has written. PTX ISA, "griddepcontrol"; chips before sm_90 do not have it.
#pragma once

namespace lanewise::gpu {

/// The next kernel may be placed where multiprocessors have room, once every block of this one has said so or ended.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The kernel before has ended, and all that it wrote is seen by this one. At once where none was overtaken.
__device__ __forceinline__ void await_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace lanewise::gpu
