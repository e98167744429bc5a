// The word in global memory by which blocks take turns at a place there, and what a turn allows: four f32 added to
// those that stand there, in an order that the turns fix.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lanewise::gpu {

/// Everything this thread has done, or has seen done by threads it met at a barrier, is seen by whoever finds `turn` in
/// the word.
__device__ __forceinline__ void pass_turn(std::uint32_t* word, std::uint32_t turn) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(turn) : "memory");
}
/// Waits for `turn` to stand in the word.
__device__ __forceinline__ void await_turn(std::uint32_t const* word, std::uint32_t turn) {
  std::uint32_t now;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  while (now != turn);
}

/// `to` is aligned to 16 bytes. sm_90 adds in L2 and returns nothing; before, whoever has the turn reads past L1, where
/// an older sum may lie.
__device__ __forceinline__ void add_global_4(float* to, float const (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  // red: order by turns as said above.
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
#else
  float4 const old = __ldcg(reinterpret_cast<float4 const*>(to));
  __stcg(reinterpret_cast<float4*>(to), {old.x + x[0], old.y + x[1], old.z + x[2], old.w + x[3]});
#endif
}
__device__ __forceinline__ void store_global_4(float* to, float const (&x)[4]) {
  __stcg(reinterpret_cast<float4*>(to), {x[0], x[1], x[2], x[3]});
}

}  // namespace lanewise::gpu
