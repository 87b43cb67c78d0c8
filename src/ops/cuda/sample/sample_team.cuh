// SampleTeam: the blocks that work on one row of a vocabulary, a thread block cluster. Each holds a
// slice of the row, in order of tokens, and can read the others' shared memory. They combine only
// integers, so the result does not depend on the number of blocks. GPUs before sm_90 have no
// clusters: a team is one block. Lives in the registers of a kernel; every thread of the team makes
// the same calls.
#pragma once

#include <cooperative_groups.h>

#include "ops/cuda/device/context.cuh"

namespace tandem::ops::cuda {

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / 32;
constexpr int kMaxTeam = 8;  // the largest cluster that every GPU with clusters supports
constexpr unsigned kAllLanes = ~0u;

// How a vocabulary is divided.
struct TeamShape {
  int blocks;
  int32_t slice;  // tokens per block; the last blocks may have fewer or none
};

inline TeamShape ShapeTeam(int64_t vocab, bool has_clusters) {
  constexpr int64_t kWorthABlock = 8192;  // fewer: the blocks' barriers cost more than they save
  int blocks = 1;
  while (has_clusters && blocks < kMaxTeam && blocks * kWorthABlock < vocab) blocks *= 2;
  return {blocks, static_cast<int32_t>(CeilDiv(CeilDiv(vocab, blocks), 32) * 32)};
}

// The block's place in its team.
__device__ inline unsigned TeamRank() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().block_rank();
#else
  return 0;
#endif
}
__device__ inline unsigned TeamSize() {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().num_blocks();
#else
  return 1;
#endif
}
// A barrier of all threads of the team; earlier writes are visible after it.
__device__ inline void SyncTeam() {
#if __CUDA_ARCH__ >= 900
  cooperative_groups::this_cluster().sync();
#else
  __syncthreads();
#endif
}
// Another block's copy of something in shared memory.
template <typename T>
__device__ T* OfTeam([[maybe_unused]] unsigned rank, T* mine) {
#if __CUDA_ARCH__ >= 900
  return cooperative_groups::this_cluster().map_shared_rank(mine, rank);
#else
  return mine;
#endif
}

// Counts of a block's tokens, and sums of their masses, by interval. A mass is below 2^63: two
// 32-bit additions are native in shared memory, whereas a 64-bit one is a loop.
struct SampleHistogram {
  static constexpr int kBins = kSampleThreads;  // a thread reads one
  uint32_t counts[kBins];
  uint32_t mass_low[kBins];
  uint32_t mass_high[kBins];
};

struct TopLogit {
  float score;
  int32_t token;
};

// The start of a block's shared memory; its slice follows, if it fits (see sample.cu).
struct alignas(16) SampleShared {
  uint64_t warps[kSampleWarps];
  uint64_t exchange[2];  // read by the whole team
  // Finding a bin (see sample_ranking.cuh).
  SampleHistogram histograms[2];  // read by the whole team
  uint64_t scan[kSampleWarps];
  uint64_t found_before;
  uint64_t found_count;
  int32_t found_bin;
  // The leader's: gathered by the whole team.
  int32_t num_top;
  TopLogit top[32];
};

class SampleTeam {
 public:
  __device__ explicit SampleTeam(SampleShared& shared)
      : shared_(shared), rank_(static_cast<int>(TeamRank())), size_(static_cast<int>(TeamSize())) {}

  __device__ int rank() const { return rank_; }
  __device__ int size() const { return size_; }
  __device__ bool is_leader() const { return rank_ == 0 && threadIdx.x == 0; }
  __device__ SampleShared& shared() const { return shared_; }

  __device__ void Sync() const { SyncTeam(); }
  template <typename T>
  __device__ T* Of(int rank, T* mine) const {
    return OfTeam(static_cast<unsigned>(rank), mine);
  }

  // Over all threads of the team; every thread gets the result. Each is a barrier.
  __device__ uint64_t Max(uint64_t value) {
    return Combine(value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  __device__ uint64_t Sum(uint64_t value) {
    return Combine(value, [](uint64_t a, uint64_t b) { return a + b; });
  }

 private:
  // 0 is neutral. Two exchanges alternate: a block that writes one has passed the barrier after
  // which nobody reads its last value.
  template <typename F>
  __device__ uint64_t Combine(uint64_t value, F combine) {
    const unsigned lane = threadIdx.x % 32;
    value = OverLanes(value, combine);
    if (lane == 0) shared_.warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x < 32) {
      value = OverLanes(lane < kSampleWarps ? shared_.warps[lane] : uint64_t{0}, combine);
      if (lane == 0) shared_.exchange[turn_] = value;
    }
    Sync();
    uint64_t all = 0;
    for (int rank = 0; rank < size_; ++rank) {
      all = combine(all, *Of(rank, &shared_.exchange[turn_]));
    }
    turn_ ^= 1;
    return all;
  }
  template <typename F>
  __device__ static uint64_t OverLanes(uint64_t value, F combine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      value = combine(value, __shfl_xor_sync(kAllLanes, value, step));
    }
    return value;
  }

  SampleShared& shared_;
  const int rank_;
  const int size_;
  int turn_ = 0;
};

// A value and its token as one number: larger for the larger value, and for equal values for the
// lower token. 0 is below all. Not for NaN.
__device__ inline uint64_t PackBest(float value, int32_t token) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 counts as 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(token);
}
__device__ inline float ValueOfBest(uint64_t best) {
  const auto ordered = static_cast<uint32_t>(best >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
__device__ inline int32_t TokenOfBest(uint64_t best) {
  return static_cast<int32_t>(~static_cast<uint32_t>(best));
}

}  // namespace tandem::ops::cuda
