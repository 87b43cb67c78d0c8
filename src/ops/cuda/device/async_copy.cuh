// Asynchronous copies into shared memory: pieces that a thread waits for itself, and (sm_90) whole
// blocks by the copy engine, which signal a barrier when they end.
//
// A barrier lies in shared memory and goes through phases: a phase ends when all announced threads
// and bytes have arrived. A waiting thread names the parity of the phase: 0 for the first, 1 for
// the second, 0 for the third.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::ops::cuda {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

constexpr int kPieceBytes = 16;
// Copies a piece, or writes zeros and reads nothing.
__device__ inline void CopyPiece(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from),
               "r"(real ? kPieceBytes : 0)
               : "memory");
}
// The same for pieces that are copied again soon: through the L1 cache. Does nothing unless `real`.
__device__ inline void CopyCachedPiece(uint32_t to, const void* from, bool real) {
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "setp.ne.b32 p, %2, 0;\n\t"
      "@p cp.async.ca.shared.global [%0], [%1], 16;\n\t}" ::"r"(to),
      "l"(from), "r"(static_cast<int>(real))
      : "memory");
}
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Returns when all except the last kPending groups of this thread's copies are complete.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Called by one thread; the others and the copy engine see it after PublishBarriers and a
// __syncthreads.
__device__ inline void InitBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
__device__ inline void PublishBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void Arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(barrier)) : "memory");
}
__device__ inline void WaitForPhase(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.b32 %0, 1, 0, p;\n\t}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
}

// The next stage of a ring of barriers, and the parity of its phase.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

// Copies `bytes`, a multiple of 16, both sides aligned to 16: arrives at the barrier and adds the
// bytes to its count. Does nothing unless `real`, without a branch: products of a warpgroup may be
// running.
__device__ inline void CopyBlock(bool real, void* shared, const void* from, uint32_t bytes,
                                 uint64_t* barrier) {
  asm volatile(
      "{\n\t.reg .pred p;\n\t"
      "setp.ne.b32 p, %4, 0;\n\t"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%3], %2;\n\t"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      "\n\t}" ::"r"(SharedAddress(shared)),
      "l"(from), "r"(bytes), "r"(SharedAddress(barrier)), "r"(static_cast<int>(real))
      : "memory");
}
// Arrives at the barrier and adds the bytes of several copies to its count.
__device__ inline void AnnounceBytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Copies a tile of the matrix, whose size the matrix's description gives, from (row, col) on; zeros
// outside of the matrix. Its bytes have been announced.
__device__ inline void CopyTile(void* shared, const CUtensorMap& matrix, int row, int col,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(shared)),
      "l"(&matrix), "r"(SharedAddress(barrier)), "r"(col), "r"(row)
      : "memory");
}
// Before a thread's first CopyBlock or CopyTile of what earlier kernels stored.
__device__ inline void SeeEarlierStores() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace tandem::ops::cuda
