// The device's side of links.cuh: access to the ranks' memory, the waits for a peer, and elements.
// Used only in comm/cuda.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "comm/cuda/links.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/cuda/device/elements.cuh"
#include "tensor/tensor.h"

namespace tandem::cuda_ranks {

__device__ inline RankMemory& Own(const Links& links) { return *links.memory[links.rank]; }
// Where rank `from` sends the lines of a round to rank `to`, of this block.
__device__ inline Line* LinesOf(const Links& links, int from, int to, uint64_t round) {
  auto* const lines = reinterpret_cast<Line*>(links.memory[to] + 1);
  const int64_t area = static_cast<int64_t>(round % 2) * links.size + from;
  return lines + (area * kMaxBlocks + blockIdx.x) * kLinesPerBlock;
}

// What rank `from` sends to rank `to`.
__device__ inline Channel& ChannelOf(const Links& links, int from, int to) {
  auto* const lines = reinterpret_cast<Line*>(links.memory[to] + 1);
  const int64_t num_lines = int64_t{2} * links.size * kMaxBlocks * kLinesPerBlock;
  return reinterpret_cast<Channel*>(lines + num_lines)[from];
}

// A line is read and written as a whole: a 128-bit access is a single one in PTX's memory model, so
// that whoever sees the round also sees the data.
__device__ inline void StoreLine(Line* to, uint64_t data, uint64_t round) {
  asm volatile(
      "{\n\t.reg .b128 line;\n\t"
      "mov.b128 line, {%1, %2};\n\t"
      "st.relaxed.sys.global.b128 [%0], line;\n\t}" ::"l"(to),
      "l"(data), "l"(round)
      : "memory");
}
__device__ inline Line LoadLine(const Line* from) {
  Line line;
  asm volatile(
      "{\n\t.reg .b128 line;\n\t"
      "ld.relaxed.sys.global.b128 line, [%2];\n\t"
      "mov.b128 {%0, %1}, line;\n\t}"
      : "=l"(line.data), "=l"(line.round)
      : "l"(from)
      : "memory");
  return line;
}

__device__ inline void StoreRelease(uint64_t* to, uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ inline uint64_t LoadAcquire(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline bool IsSet(const uint32_t* stop) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(stop) : "memory");
  return value != 0;
}
// Memory of a peer, which is read once and only after a wait.
__device__ inline uint4 LoadPiece(const uint4* from) {
  uint4 piece;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
               : "l"(from)
               : "memory");
  return piece;
}

// Returns true when ready() does, false when a rank has failed. The latter takes some milliseconds
// to notice, because the flag is in host memory and is rarely read.
template <typename Ready>
__device__ bool Await(const Links& links, const Ready& ready) {
  constexpr uint32_t kSpins = 4096;
  for (uint32_t spins = 1; !ready(); ++spins) {
    if (spins % kSpins == 0 && IsSet(links.stop)) return false;
  }
  return true;
}

// Returns when this block of every rank has reached `stage` of `round`: the block then sees what
// the peers' blocks wrote before. Returns false in all threads when the wait was given up. One
// thread for each peer signals and waits. The first barrier orders the writes of the whole block
// before those releases, the second one orders those acquires before the reads of the whole block:
// release and acquire are cumulative over barriers.
__device__ inline bool Meet(const Links& links, Stage stage, uint64_t round) {
  __syncthreads();
  bool met = true;
  const auto peer = static_cast<int>(threadIdx.x);
  if (peer < links.size && peer != links.rank) {
    StoreRelease(&links.memory[peer]->flags[stage][blockIdx.x].from[links.rank], round);
    // A peer that has finished this round may already be at the same stage of the next one.
    const uint64_t* const flag = &Own(links).flags[stage][blockIdx.x].from[peer];
    met = Await(links, [&] { return LoadAcquire(flag) >= round; });
  }
  return __syncthreads_or(met ? 0 : 1) == 0;
}

// kCount elements from `first` on; zeros beyond `count`. kWhole: `count` is a multiple of kCount
// and `rows` is aligned for an access to kCount elements at once.
template <typename T, int kCount, bool kWhole>
__device__ ops::cuda::Pack<T, kCount> LoadElements(const T* rows, int64_t first, int64_t count) {
  ops::cuda::Pack<T, kCount> pack{};
  if constexpr (kWhole) {
    if (first < count) pack = ops::cuda::LoadPack<T, kCount>(rows + first);
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (first + e < count) pack.at[e] = rows[first + e];
    }
  }
  return pack;
}
template <typename T, int kCount, bool kWhole>
__device__ void StoreElements(T* rows, int64_t first, int64_t count,
                              const ops::cuda::Pack<T, kCount>& pack) {
  if constexpr (kWhole) {
    if (first < count) ops::cuda::StorePack<T, kCount>(rows + first, pack);
  } else {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if (first + e < count) rows[first + e] = pack.at[e];
    }
  }
}

// Sums kCount elements in fp32, in the order of the calls, and rounds once.
template <typename T, int kCount>
class Sum {
 public:
  __device__ void Add(const ops::cuda::Pack<T, kCount>& pack, bool first) {
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      const float value = Widen(pack.at[e]);
      sum_[e] = first ? value : sum_[e] + value;
    }
  }
  __device__ ops::cuda::Pack<T, kCount> Rounded() const {
    ops::cuda::Pack<T, kCount> pack;
#pragma unroll
    for (int e = 0; e < kCount; ++e) {
      if constexpr (std::is_same_v<T, float>) {
        pack.at[e] = sum_[e];
      } else {
        pack.at[e] = ops::cuda::FromFloat<T>(sum_[e]);
      }
    }
    return pack;
  }

 private:
  __device__ static float Widen(T value) {
    if constexpr (std::is_same_v<T, float>) {
      return value;
    } else {
      return ops::cuda::ToFloat(value);
    }
  }

  float sum_[kCount];
};

// Calls load(i) and then store(i, piece) for each i from 0 up to `count`, with kBatch loads of a
// thread under way at once.
template <int kBatch, typename Load, typename Store>
__device__ void MovePieces(int count, const Load& load, const Store& store) {
  for (int begin = static_cast<int>(threadIdx.x); begin < count; begin += kBatch * kPieceThreads) {
    uint4 pieces[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i * kPieceThreads < count) pieces[i] = load(begin + i * kPieceThreads);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i * kPieceThreads < count) store(begin + i * kPieceThreads, pieces[i]);
    }
  }
}

// Calls run(T{}) with the element type.
template <typename Run>
void WithElement(DType dtype, const Run& run) {
  if (dtype == DType::kF32) return run(float{});
  ops::cuda::WithActivation(dtype, run);
}
// Calls run with an upper bound of `ranks`: 2, 4 or 8, as a constant.
template <typename Run>
void WithMostRanks(int ranks, const Run& run) {
  if (ranks <= 2) return run(std::integral_constant<int, 2>{});
  if (ranks <= 4) return run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, kMaxRanks>{});
}
// Calls run(T{}, most, whole) with the element type of `rows`, an upper bound of `ranks`, and
// whether the rows can be accessed kBytes at a time (kWhole). The last two convert to constants.
template <int kBytes, typename Run>
void WithRows(const Tensor& rows, int ranks, const Run& run) {
  const bool whole =
      rows.NumBytes() % kBytes == 0 && reinterpret_cast<uintptr_t>(rows.data) % kBytes == 0;
  WithElement(rows.dtype, [&](auto element) {
    WithMostRanks(ranks, [&](auto most) {
      if (whole) return run(element, most, std::true_type{});
      run(element, most, std::false_type{});
    });
  });
}
// Calls run as WithRows does, for every type and for both cases.
template <typename Run>
void ForEachKindOfRows(int ranks, const Run& run) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    WithElement(dtype, [&](auto element) {
      WithMostRanks(ranks, [&](auto most) {
        run(element, most, std::true_type{});
        run(element, most, std::false_type{});
      });
    });
  }
}
// Loads a kernel onto the current GPU. CUDA loads it at its first launch otherwise, and may wait
// there for kernels that run; they may wait for a peer, and its thread for a lock of the driver.
template <typename Kernel>
void LoadKernel(Kernel kernel) {
  cudaFuncAttributes attributes{};
  ops::cuda::CheckCuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
                       "a kernel");
}

}  // namespace tandem::cuda_ranks
