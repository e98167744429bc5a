// The copy engine on plain runs of bytes: global to shared memory, shared to global, and shared added to f32 in global
// memory; and the word in global memory by which blocks take turns. PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk".
// Addresses and byte counts are multiples of 16.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

/// Global to shared memory; the bytes are counted on `barrier`.
__device__ __forceinline__ void bulk_load(std::uint32_t to, void const* from, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Shared to global memory, in the background: the thread's group of such copies.
__device__ __forceinline__ void bulk_store(void* to, std::uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

/// The same, added to the f32 that stand there. The order of additions to one place is the caller's: it starts one only
/// after bulk_wait_written() of the one before.
__device__ __forceinline__ void bulk_add(float* to, std::uint32_t from, int bytes) {
  // cp.reduce.async.bulk: order as said above.
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// All of this thread's groups have read their shared memory.
__device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/// All of this thread's groups have been written.
__device__ __forceinline__ void bulk_wait_written() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Everything this thread has done, its finished bulk copies among it, is seen by whoever finds `turn` in the word.
__device__ __forceinline__ void pass_turn(std::uint32_t* word, std::uint32_t turn) {
  asm volatile("fence.proxy.async.global;\nst.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(turn) : "memory");
}
/// Waits for `turn` to stand in the word; bulk copies started afterwards come after those before pass_turn().
__device__ __forceinline__ void await_turn(std::uint32_t const* word, std::uint32_t turn) {
  std::uint32_t now;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  while (now != turn);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
/// What stands in the word: a hint, which orders nothing.
__device__ __forceinline__ std::uint32_t peek_turn(std::uint32_t const* word) {
  std::uint32_t now;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
  return now;
}
/// await_turn() by a thread that has peeked while it did something else.
__device__ __forceinline__ void await_turn(std::uint32_t const* word, std::uint32_t turn, std::uint32_t peeked) {
  if (peeked == turn) asm volatile("fence.acq_rel.gpu;\nfence.proxy.async.global;" ::: "memory");
  else await_turn(word, turn);
}

}  // namespace lanewise::gpu
