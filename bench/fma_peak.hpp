// The FMA rate that a processor reaches with everything in registers: the ceiling that attention is measured against.
#pragma once

#include <lanewise/cpu/micro_kernel.hpp>
#include <lanewise/cpu/thread_pool.hpp>

#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace bench {

/// 16 chains of multiply-adds cover 4 cycles of latency on 4 units. The sums stay at 1, so nothing overflows.
inline constexpr int chains = 16;

#if defined(__x86_64__)
[[gnu::target("avx512f")]] inline float fma_avx512(std::int64_t rounds) {
  __m512 sum[chains];
  for (__m512& x : sum) x = _mm512_set1_ps(1);
  __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.5f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(a), "+v"(b));
  #pragma GCC unroll 16
    for (__m512& x : sum) x = _mm512_fmadd_ps(x, a, b);
  }
  __m512 total = sum[0];
  for (int i = 1; i < chains; ++i) total += sum[i];
  return _mm512_cvtss_f32(total);
}

/// 12 chains: 16 registers hold no more beside the operands.
[[gnu::target("avx2,fma")]] inline float fma_avx2(std::int64_t rounds) {
  __m256 sum[12];
  for (__m256& x : sum) x = _mm256_set1_ps(1);
  __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.5f);
  for (std::int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+x"(a), "+x"(b));
  #pragma GCC unroll 12
    for (__m256& x : sum) x = _mm256_fmadd_ps(x, a, b);
  }
  __m256 total = sum[0];
  for (int i = 1; i < 12; ++i) total += sum[i];
  return _mm256_cvtss_f32(total);
}
#endif

/// Multiplies and adds, without a vector extension; the compiler may still use the baseline's vectors.
inline float fma_portable(std::int64_t rounds) {
  float sum[64];
  for (float& x : sum) x = 1;
  for (std::int64_t i = 0; i < rounds; ++i)
    for (float& x : sum) x = x * 0.5f + 0.5f;
  float total = 0;
  for (float x : sum) total += x;
  return total;
}

struct fma_loop {
  char const* name;
  float (*run)(std::int64_t);
  int flop_per_round;
};

/// The loop for the widest instruction set that the engine would take.
inline fma_loop widest_fma_loop() {
#if defined(__x86_64__)
  if (lanewise::cpu::supports(lanewise::cpu_isa::avx512)) return {"avx512", fma_avx512, 2 * 16 * chains};
  if (lanewise::cpu::supports(lanewise::cpu_isa::avx2)) return {"avx2", fma_avx2, 2 * 8 * 12};
#endif
  return {"portable", fma_portable, 2 * 64};
}

}  // namespace bench
