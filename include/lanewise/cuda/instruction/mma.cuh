// mma.sync: D (16 x 8, f32) += A B by one warp; operand maps in lane_map.hpp. Also the roundings that operands need.
#pragma once

#include <cstdint>

#include "../../precision.hpp"

namespace lanewise::gpu {

__device__ __forceinline__ void mma_m16n8k16(bf16, float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(f16, float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The low 13 bits of every operand are ignored: round first, or the error is one-sided.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], std::uint32_t const (&a)[4], std::uint32_t b0,
                                                 std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Nearest tf32; ties go to even, before sm_90, which brought that form in one instruction for three, away from zero.
__device__ __forceinline__ std::uint32_t round_to_tf32(float x) {
  std::uint32_t r;
#if __CUDA_ARCH__ >= 900
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#else
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
#endif
  return r;
}

/// Two numbers rounded to nearest even in one register, `low` in the low half.
__device__ __forceinline__ std::uint32_t pack(bf16, float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
__device__ __forceinline__ std::uint32_t pack(f16, float low, float high) {
  std::uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}

/// The two numbers of a register.
__device__ __forceinline__ float2 unpack(bf16, std::uint32_t x) {
  return {bit_cast<float>(x << 16), bit_cast<float>(x & 0xffff0000u)};
}
__device__ __forceinline__ float2 unpack(f16, std::uint32_t x) {
  float2 y;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(y.x), "=f"(y.y)
      : "r"(x));
  return y;
}

/// Two limbs of each of two numbers: high = round(x), low = round(x - high).
template <class E>
__device__ __forceinline__ void split(E, std::uint32_t& high, std::uint32_t& low, float x, float y) {
  high = pack(E{}, x, y);
  float2 const rounded = unpack(E{}, high);
  low = pack(E{}, x - rounded.x, y - rounded.y);
}

/// 2^x, relative error 2^-22; 2^-infinity is 0.
__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lanewise::gpu
