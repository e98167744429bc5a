// The copy engine on plain runs of bytes: global to shared memory, shared to global, and shared added to f32 in global
// memory; and the word in global memory by which blocks take turns. PTX ISA, "cp.async.bulk", "cp.reduce.async.bulk".
// Addresses and byte counts are multiples of 16.
#pragma once

#include <cstdint>

#include "turn.cuh"

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

/// What this thread has written or seen written, here or in shared memory, is seen by bulk copies that it starts.
__device__ __forceinline__ void bulk_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }

/// pass_turn() that also orders this thread's finished bulk copies.
__device__ __forceinline__ void pass_bulk_turn(std::uint32_t* word, std::uint32_t turn) {
  asm volatile("fence.proxy.async.global;" ::: "memory");
  pass_turn(word, turn);
}
/// await_turn(); bulk copies started afterwards come after those before pass_bulk_turn().
__device__ __forceinline__ void await_bulk_turn(std::uint32_t const* word, std::uint32_t turn) {
  await_turn(word, turn);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace lanewise::gpu
