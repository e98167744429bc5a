// stmatrix: four 8 x 8 matrices of 16-bit elements to shared memory, sm_90. Lane 8 i + r gives the address of row r of
// matrix i (16 bytes). Lane l holds row l / 4 of each matrix, elements 2 (l % 4) and the next, as an accumulator does;
// with `.trans` column l / 4, so that an accumulator's rows become the columns of what is stored.
#pragma once

#include <cstdint>

namespace lanewise::gpu {

__device__ __forceinline__ void stmatrix(std::uint32_t address, std::uint32_t const (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void stmatrix_transposed(std::uint32_t address, std::uint32_t const (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

}  // namespace lanewise::gpu
