// ldmatrix: four 8 x 8 matrices of 16-bit elements (or 8 x 4 of 32-bit ones) from shared memory. Lane 8 i + r gives the
// address of row r of matrix i (16 bytes); lane l receives row l / 4, 32-bit word l % 4 of each matrix. With `.trans`
// it receives column l / 4, elements 2 (l % 4) and the next (16-bit elements only).
#pragma once

#include <cstdint>

namespace lanewise::gpu {

__device__ __forceinline__ void ldmatrix(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void ldmatrix_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace lanewise::gpu
