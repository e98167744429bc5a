// wgmma: D (64 x N, f32) += A (64 x 16) B (16 x N) by one warpgroup of 128 threads, sm_90a. B lies in shared memory and is
// named by a descriptor; A too, or in registers. PTX ISA, "Asynchronous warpgroup level matrix multiply-accumulate".
//
// Accumulators are c[N / 8] of any struct with `float x[4]`: block j holds columns 8 j ... 8 j + 7 on the map
// lane_maps::wgmma_m64. The products run behind the program: between issue and wait neither accumulators nor A registers
// may be touched, or ptxas waits after every product (messages C7510 ... C7519). The order is
//   wgmma_fence(); multiply...; wgmma_commit(); wgmma_wait<n>(c);
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../precision.hpp"

namespace lanewise::gpu {

/// Registers written so far are seen by the products that follow: before the first of them, and after each change.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Closes a group of products.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Keeps the compiler from moving accesses to these registers across this place: it takes the product's registers for
/// finished once the instruction is issued.
template <class Block, int n>
__device__ __forceinline__ void pin(Block (&c)[n]) {
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(c[j].x[e])::"memory");
}
template <int n>
__device__ __forceinline__ void pin(std::uint32_t (&a)[n][4]) {
#pragma unroll
  for (int j = 0; j < n; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) asm volatile("" : "+r"(a[j][e])::"memory");
}

/// Waits until at most `pending` of the last groups are under way; `c` belongs to the groups that are done.
template <int pending, class Block, int n>
__device__ __forceinline__ void wgmma_wait(Block (&c)[n]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  pin(c);
}

#define LANEWISE_WGMMA_LIST_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define LANEWISE_WGMMA_LIST_1 LANEWISE_WGMMA_LIST_0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define LANEWISE_WGMMA_LIST_2 LANEWISE_WGMMA_LIST_1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define LANEWISE_WGMMA_LIST_3 LANEWISE_WGMMA_LIST_2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define LANEWISE_WGMMA_LIST_4 LANEWISE_WGMMA_LIST_3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define LANEWISE_WGMMA_LIST_5 LANEWISE_WGMMA_LIST_4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define LANEWISE_WGMMA_LIST_6 LANEWISE_WGMMA_LIST_5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define LANEWISE_WGMMA_LIST_7 LANEWISE_WGMMA_LIST_6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define LANEWISE_WGMMA_LIST_8 LANEWISE_WGMMA_LIST_7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define LANEWISE_WGMMA_LIST_9 LANEWISE_WGMMA_LIST_8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define LANEWISE_WGMMA_LIST_10 LANEWISE_WGMMA_LIST_9 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define LANEWISE_WGMMA_LIST_11 LANEWISE_WGMMA_LIST_10 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define LANEWISE_WGMMA_LIST_12 LANEWISE_WGMMA_LIST_11 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define LANEWISE_WGMMA_LIST_13 LANEWISE_WGMMA_LIST_12 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define LANEWISE_WGMMA_LIST_14 LANEWISE_WGMMA_LIST_13 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define LANEWISE_WGMMA_LIST_15 LANEWISE_WGMMA_LIST_14 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define LANEWISE_WGMMA_BIND_0 LANEWISE_WGMMA_BLOCK(0), LANEWISE_WGMMA_BLOCK(1)
#define LANEWISE_WGMMA_BIND_1 LANEWISE_WGMMA_BIND_0, LANEWISE_WGMMA_BLOCK(2), LANEWISE_WGMMA_BLOCK(3)
#define LANEWISE_WGMMA_BIND_2 LANEWISE_WGMMA_BIND_1, LANEWISE_WGMMA_BLOCK(4), LANEWISE_WGMMA_BLOCK(5)
#define LANEWISE_WGMMA_BIND_3 LANEWISE_WGMMA_BIND_2, LANEWISE_WGMMA_BLOCK(6), LANEWISE_WGMMA_BLOCK(7)
#define LANEWISE_WGMMA_BIND_4 LANEWISE_WGMMA_BIND_3, LANEWISE_WGMMA_BLOCK(8), LANEWISE_WGMMA_BLOCK(9)
#define LANEWISE_WGMMA_BIND_5 LANEWISE_WGMMA_BIND_4, LANEWISE_WGMMA_BLOCK(10), LANEWISE_WGMMA_BLOCK(11)
#define LANEWISE_WGMMA_BIND_6 LANEWISE_WGMMA_BIND_5, LANEWISE_WGMMA_BLOCK(12), LANEWISE_WGMMA_BLOCK(13)
#define LANEWISE_WGMMA_BIND_7 LANEWISE_WGMMA_BIND_6, LANEWISE_WGMMA_BLOCK(14), LANEWISE_WGMMA_BLOCK(15)
#define LANEWISE_WGMMA_BIND_8 LANEWISE_WGMMA_BIND_7, LANEWISE_WGMMA_BLOCK(16), LANEWISE_WGMMA_BLOCK(17)
#define LANEWISE_WGMMA_BIND_9 LANEWISE_WGMMA_BIND_8, LANEWISE_WGMMA_BLOCK(18), LANEWISE_WGMMA_BLOCK(19)
#define LANEWISE_WGMMA_BIND_10 LANEWISE_WGMMA_BIND_9, LANEWISE_WGMMA_BLOCK(20), LANEWISE_WGMMA_BLOCK(21)
#define LANEWISE_WGMMA_BIND_11 LANEWISE_WGMMA_BIND_10, LANEWISE_WGMMA_BLOCK(22), LANEWISE_WGMMA_BLOCK(23)
#define LANEWISE_WGMMA_BIND_12 LANEWISE_WGMMA_BIND_11, LANEWISE_WGMMA_BLOCK(24), LANEWISE_WGMMA_BLOCK(25)
#define LANEWISE_WGMMA_BIND_13 LANEWISE_WGMMA_BIND_12, LANEWISE_WGMMA_BLOCK(26), LANEWISE_WGMMA_BLOCK(27)
#define LANEWISE_WGMMA_BIND_14 LANEWISE_WGMMA_BIND_13, LANEWISE_WGMMA_BLOCK(28), LANEWISE_WGMMA_BLOCK(29)
#define LANEWISE_WGMMA_BIND_15 LANEWISE_WGMMA_BIND_14, LANEWISE_WGMMA_BLOCK(30), LANEWISE_WGMMA_BLOCK(31)
#define LANEWISE_WGMMA_BLOCK(j) "+f"(c[j].x[0]), "+f"(c[j].x[1]), "+f"(c[j].x[2]), "+f"(c[j].x[3])
#define LANEWISE_WGMMA_CASES \
  LANEWISE_WGMMA_CASE(16, 0, 8, 9, 10, 11, 12, 13, 14) \
  LANEWISE_WGMMA_CASE(32, 1, 16, 17, 18, 19, 20, 21, 22) \
  LANEWISE_WGMMA_CASE(48, 2, 24, 25, 26, 27, 28, 29, 30) \
  LANEWISE_WGMMA_CASE(64, 3, 32, 33, 34, 35, 36, 37, 38) \
  LANEWISE_WGMMA_CASE(80, 4, 40, 41, 42, 43, 44, 45, 46) \
  LANEWISE_WGMMA_CASE(96, 5, 48, 49, 50, 51, 52, 53, 54) \
  LANEWISE_WGMMA_CASE(112, 6, 56, 57, 58, 59, 60, 61, 62) \
  LANEWISE_WGMMA_CASE(128, 7, 64, 65, 66, 67, 68, 69, 70) \
  LANEWISE_WGMMA_CASE(144, 8, 72, 73, 74, 75, 76, 77, 78) \
  LANEWISE_WGMMA_CASE(160, 9, 80, 81, 82, 83, 84, 85, 86) \
  LANEWISE_WGMMA_CASE(176, 10, 88, 89, 90, 91, 92, 93, 94) \
  LANEWISE_WGMMA_CASE(192, 11, 96, 97, 98, 99, 100, 101, 102) \
  LANEWISE_WGMMA_CASE(208, 12, 104, 105, 106, 107, 108, 109, 110) \
  LANEWISE_WGMMA_CASE(224, 13, 112, 113, 114, 115, 116, 117, 118) \
  LANEWISE_WGMMA_CASE(240, 14, 120, 121, 122, 123, 124, 125, 126) \
  LANEWISE_WGMMA_CASE(256, 15, 128, 129, 130, 131, 132, 133, 134)

/// C = A B, or C += A B where `accumulate`: A and B by descriptors. `b_is_rows`: B lies as [N][16], K-major; else as
/// [16][N], MN-major. A is K-major. E is bf16 or f16.
template <class E, bool b_is_rows, class Block, int n>
__device__ __forceinline__ void wgmma(Block (&c)[n], std::uint64_t a, std::uint64_t b, bool accumulate) {
  static_assert(n % 2 == 0 && n <= 32, "wgmma: N is a multiple of 16, at most 256");
#define LANEWISE_WGMMA_CASE(N, last, r0, r1, r2, r3, r4, r5, r6)                                                       \
  if constexpr (8 * n == N) {                                                                                          \
    if constexpr (std::is_same_v<E, bf16>)                                                                             \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N                   \
                   "k16.f32.bf16.bf16 {" LANEWISE_WGMMA_LIST_##last "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, %" #r3 ";}"    \
                   : LANEWISE_WGMMA_BIND_##last                                                                        \
                   : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(!b_is_rows)));                                      \
    else                                                                                                               \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N                   \
                   "k16.f32.f16.f16 {" LANEWISE_WGMMA_LIST_##last "}, %" #r0 ", %" #r1 ", p, 1, 1, 0, %" #r3 ";}"      \
                   : LANEWISE_WGMMA_BIND_##last                                                                        \
                   : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(!b_is_rows)));                                      \
  }
  LANEWISE_WGMMA_CASES
#undef LANEWISE_WGMMA_CASE
}

/// The same with A in registers, on the map lane_maps::wgmma_m64::a.
template <class E, bool b_is_rows, class Block, int n>
__device__ __forceinline__ void wgmma(Block (&c)[n], std::uint32_t const (&a)[4], std::uint64_t b, bool accumulate) {
  static_assert(n % 2 == 0 && n <= 32, "wgmma: N is a multiple of 16, at most 256");
#define LANEWISE_WGMMA_CASE(N, last, r0, r1, r2, r3, r4, r5, r6)                                                       \
  if constexpr (8 * n == N) {                                                                                          \
    if constexpr (std::is_same_v<E, bf16>)                                                                             \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N                   \
                   "k16.f32.bf16.bf16 {" LANEWISE_WGMMA_LIST_##last "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4  \
                   ", p, 1, 1, %" #r6 ";}"                                                                             \
                   : LANEWISE_WGMMA_BIND_##last                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)),                         \
                     "n"(int(!b_is_rows)));                                                                            \
    else                                                                                                               \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %" #r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N                   \
                   "k16.f32.f16.f16 {" LANEWISE_WGMMA_LIST_##last "}, {%" #r0 ",%" #r1 ",%" #r2 ",%" #r3 "}, %" #r4    \
                   ", p, 1, 1, %" #r6 ";}"                                                                             \
                   : LANEWISE_WGMMA_BIND_##last                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)),                         \
                     "n"(int(!b_is_rows)));                                                                            \
  }
  LANEWISE_WGMMA_CASES
#undef LANEWISE_WGMMA_CASE
}

#undef LANEWISE_WGMMA_BLOCK
#define LANEWISE_WGMMA_BLOCK(j) "=f"(c[j].x[0]), "=f"(c[j].x[1]), "=f"(c[j].x[2]), "=f"(c[j].x[3])

/// C = A B by descriptors, where what C held is of no interest: said to the compiler, which otherwise takes whatever
/// last wrote those registers for part of the product and serialises the pipeline around it (C7515).
template <class E, bool b_is_rows, class Block, int n>
__device__ __forceinline__ void wgmma_anew(Block (&c)[n], std::uint64_t a, std::uint64_t b) {
  static_assert(n % 2 == 0 && n <= 32, "wgmma: N is a multiple of 16, at most 256");
#define LANEWISE_WGMMA_CASE(N, last, r0, r1, r2, r3, r4, r5, r6)                                                     \
  if constexpr (8 * n == N) {                                                                                        \
    if constexpr (std::is_same_v<E, bf16>)                                                                           \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" LANEWISE_WGMMA_LIST_##last "}, %" #r0 \
                   ", %" #r1 ", 0, 1, 1, 0, %" #r2 ";"                                                               \
                   : LANEWISE_WGMMA_BIND_##last                                                                      \
                   : "l"(a), "l"(b), "n"(int(!b_is_rows)));                                                          \
    else                                                                                                             \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" LANEWISE_WGMMA_LIST_##last "}, %" #r0   \
                   ", %" #r1 ", 0, 1, 1, 0, %" #r2 ";"                                                               \
                   : LANEWISE_WGMMA_BIND_##last                                                                      \
                   : "l"(a), "l"(b), "n"(int(!b_is_rows)));                                                          \
  }
  LANEWISE_WGMMA_CASES
#undef LANEWISE_WGMMA_CASE
}

#undef LANEWISE_WGMMA_BLOCK
#undef LANEWISE_WGMMA_CASES
#undef LANEWISE_WGMMA_LIST_0
#undef LANEWISE_WGMMA_LIST_1
#undef LANEWISE_WGMMA_LIST_2
#undef LANEWISE_WGMMA_LIST_3
#undef LANEWISE_WGMMA_LIST_4
#undef LANEWISE_WGMMA_LIST_5
#undef LANEWISE_WGMMA_LIST_6
#undef LANEWISE_WGMMA_LIST_7
#undef LANEWISE_WGMMA_LIST_8
#undef LANEWISE_WGMMA_LIST_9
#undef LANEWISE_WGMMA_LIST_10
#undef LANEWISE_WGMMA_LIST_11
#undef LANEWISE_WGMMA_LIST_12
#undef LANEWISE_WGMMA_LIST_13
#undef LANEWISE_WGMMA_LIST_14
#undef LANEWISE_WGMMA_LIST_15
#undef LANEWISE_WGMMA_BIND_0
#undef LANEWISE_WGMMA_BIND_1
#undef LANEWISE_WGMMA_BIND_2
#undef LANEWISE_WGMMA_BIND_3
#undef LANEWISE_WGMMA_BIND_4
#undef LANEWISE_WGMMA_BIND_5
#undef LANEWISE_WGMMA_BIND_6
#undef LANEWISE_WGMMA_BIND_7
#undef LANEWISE_WGMMA_BIND_8
#undef LANEWISE_WGMMA_BIND_9
#undef LANEWISE_WGMMA_BIND_10
#undef LANEWISE_WGMMA_BIND_11
#undef LANEWISE_WGMMA_BIND_12
#undef LANEWISE_WGMMA_BIND_13
#undef LANEWISE_WGMMA_BIND_14
#undef LANEWISE_WGMMA_BIND_15

}  // namespace lanewise::gpu
