// mbarrier: a 64-bit word in shared memory that counts arrivals and the bytes of bulk copies. A phase ends when all
// expected arrivals and bytes have come; the next begins by itself. PTX ISA, "mbarrier".
//
// A waiter names the parity of the phase whose end it waits for: 0 for the first, then alternately. Waiting for parity
// 1 on a fresh barrier returns at once, which is how a producer finds its buffers empty at the start.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

__device__ __forceinline__ void mbarrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// After the last init and before a block barrier: the copy engine and the other threads see initialised words.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// One arrival; what this thread wrote before is seen by whoever waits for the phase.
__device__ __forceinline__ void mbarrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival, and `bytes` of bulk copies to come in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// True where that phase has ended; does not wait.
__device__ __forceinline__ bool mbarrier_test(std::uint32_t barrier, std::uint32_t parity) {
  int ended;
  asm volatile(
      "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}

/// Where the n-th use of a ring of `stages` buffers, each with barriers of its own, falls; n counts to 2^32.
template <int stages>
struct ring {
  static constexpr int size = stages;
  static __device__ __forceinline__ int stage(std::uint32_t n) { return int(n % stages); }
  static __device__ __forceinline__ std::uint32_t parity(std::uint32_t n) { return n / stages % 2; }
};

}  // namespace lanewise::gpu
