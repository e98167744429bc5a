// The copy engine (TMA): boxes of a tensor, named by a tensor map in kernel parameters, to shared memory and back. PTX
// ISA, "cp.async.bulk.tensor". Parts of a box outside the tensor arrive as zeros and count as bytes all the same; they
// are not stored.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace lanewise::gpu {

/// Brings the map itself near; before the first copy that uses it.
__device__ __forceinline__ void tma_prefetch_map(CUtensorMap const& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}

/// The box at (column, row, head, batch) of a view's map to shared address `to`, a multiple of 128; its bytes are
/// counted on `barrier`.
__device__ __forceinline__ void tma_load(std::uint32_t to, CUtensorMap const& map, std::uint32_t barrier, int column,
                                         int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

/// The box at shared address `from` to (column, row, head, batch) of a view's map. What ordinary stores wrote there is
/// seen after an async_proxy_fence of each thread that wrote, and a barrier.
__device__ __forceinline__ void tma_store(CUtensorMap const& map, std::uint32_t from, int column, int row, int head,
                                          int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                   reinterpret_cast<std::uint64_t>(&map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

}  // namespace lanewise::gpu
