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

/// What stands in the word: a hint, which orders nothing.
__device__ __forceinline__ std::uint32_t peek_turn(std::uint32_t const* word) {
  std::uint32_t now;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  return now;
}
/// await_turn() by a thread that has peeked while it did something else.
__device__ __forceinline__ void await_turn(std::uint32_t const* word, std::uint32_t turn, std::uint32_t peeked) {
  if (peeked == turn) asm volatile("fence.acq_rel.gpu;" ::: "memory");
  else await_turn(word, turn);
}

/// Past L1, where what stood there before another block's turn may lie. `to` is aligned to 16 bytes.
__device__ __forceinline__ void add_global_4(float* to, float const (&x)[4]) {
  float4 const old = __ldcg(reinterpret_cast<float4 const*>(to));
  __stcg(reinterpret_cast<float4*>(to), {old.x + x[0], old.y + x[1], old.z + x[2], old.w + x[3]});
}
__device__ __forceinline__ void store_global_4(float* to, float const (&x)[4]) {
  __stcg(reinterpret_cast<float4*>(to), {x[0], x[1], x[2], x[3]});
}

}  // namespace lanewise::gpu
