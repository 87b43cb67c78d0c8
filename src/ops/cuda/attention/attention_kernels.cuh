// The choice of the attention kernels and their launch; included by the files that instantiate
// them, one per pair of element types.
#pragma once

#include "ops/cuda/attention/attention_block.cuh"
#include "ops/cuda/attention/attention_warp.cuh"
#include "ops/cuda/attention/attention_warpgroup.cuh"

namespace tandem::ops::cuda {

template <typename Kernel>
void AllowShared(Kernel kernel, int shared_bytes) {
  CheckCuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
            "shared memory of attention");
}

template <typename Kernel>
void LaunchAttention(const Context& context, Kernel kernel, const AttentionParams& params,
                     dim3 grid, int shared_bytes, int threads = kBlockThreads) {
  AllowShared(kernel, shared_bytes);
  LaunchEarly(context, "PagedAttention", kernel, grid, threads, shared_bytes, params);
}

// Calls use(kernel, its shared bytes) with the kernel for short sequences that takes tiles of
// tile_rows rows.
template <typename Kind, typename Use>
void WithShortKernel(const Context& context, int tile_rows, const Use& use) {
  if (tile_rows == kWarpRows) {
    use(WarpAttentionKernel<Kind>, WarpAttentionSharedBytes<Kind>());
    return;
  }
  const auto use_stages = [&]<int kStages>() {
    using Plan = BlockPlan<Kind, 1, KeyOrder::kChunks, kStages>;
    static_assert(Plan::kRows == kBlockRows);
    use(ChunkAttentionKernel<Kind, kStages>, Plan::kSharedBytes);
  };
  // Waiting for memory is all that it does, so it has as much under way as leaves room for two
  // blocks a multiprocessor.
  constexpr int kMostBytes = BlockPlan<Kind, 1, KeyOrder::kChunks, 3>::kSharedBytes;
  if (2 * kMostBytes <= context.shared_bytes) {
    use_stages.template operator()<3>();
  } else {
    use_stages.template operator()<2>();
  }
}

template <typename Kind>
void LaunchShort(const Context& context, const AttentionParams& params, int blocks) {
  const dim3 grid(static_cast<unsigned>(params.num_kv_heads), static_cast<unsigned>(blocks),
                  static_cast<unsigned>(CeilDiv(params.slot_rows, params.tile_rows)));
  WithShortKernel<Kind>(context, params.tile_rows, [&](auto kernel, int shared_bytes) {
    LaunchAttention(context, kernel, params, grid, shared_bytes);
  });
}

template <typename Kind>
void LaunchLong(const Context& context, const AttentionParams& params, int num_rows, int num_seqs) {
  const auto launch = [&]<int kTiles, KeyOrder kOrder>() {
    using Plan = BlockPlan<Kind, kTiles, kOrder>;
    // Each sequence may have one tile that is not full.
    const int64_t tiles = CeilDiv(int64_t{num_rows} * params.group, Plan::kRows) + num_seqs;
    LaunchAttention(context, RowTileAttentionKernel<Kind, kTiles, kOrder>, params,
                    dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(params.num_kv_heads)),
                    Plan::kSharedBytes);
  };
  if (params.invariant) {
    launch.template operator()<1, KeyOrder::kAllMerged>();
  } else {
    launch.template operator()<2, KeyOrder::kAll>();
  }
}

template <typename Kind>
void LaunchGathered(const Context& context, const AttentionParams& params, int num_rows,
                    int num_seqs, int num_heads) {
  const auto heads = static_cast<unsigned>(num_heads);
  LaunchAttention(context, GatherTilesKernel<Kind>, params,
                  dim3(static_cast<unsigned>(params.max_tiles), heads), 0, kMultiplyThreads);
  // Each sequence may have one tile of rows that is not full.
  const int64_t tiles = CeilDiv(int64_t{num_rows} * params.group, kRowsOfBlock) + num_seqs;
  LaunchAttention(context, WarpgroupAttentionKernel<Kind>, params,
                  dim3(static_cast<unsigned>(tiles), heads),
                  static_cast<int>(sizeof(TilesInFlight<Kind>)), kLaunchThreads);
}

template <typename T, typename Stored, bool kHasRule, typename Launch>
void WithHeadKind(int head_dim, const Launch& launch) {
  if (head_dim == 64) {
    launch(HeadKind<T, Stored, 64, kHasRule>{});
  } else {
    TANDEM_CHECK(head_dim == 128, "no attention tiles for this head size");
    launch(HeadKind<T, Stored, 128, kHasRule>{});
  }
}

template <typename T, typename Stored, bool kHasRule>
void LaunchShortAttention(const Context& context, const AttentionParams& params, int blocks) {
  WithHeadKind<T, Stored, kHasRule>(
      params.head_dim, [&](auto kind) { LaunchShort<decltype(kind)>(context, params, blocks); });
}

template <typename T, typename Stored, bool kHasRule>
void LaunchLongAttention(const Context& context, const AttentionParams& params, int num_rows,
                         int num_seqs) {
  WithHeadKind<T, Stored, kHasRule>(params.head_dim, [&](auto kind) {
    LaunchLong<decltype(kind)>(context, params, num_rows, num_seqs);
  });
}

template <typename T, typename Stored, bool kHasRule>
void LaunchGatheredAttention(const Context& context, const AttentionParams& params, int num_rows,
                             int num_seqs, int num_heads) {
  WithHeadKind<T, Stored, kHasRule>(params.head_dim, [&](auto kind) {
    LaunchGathered<decltype(kind)>(context, params, num_rows, num_seqs, num_heads);
  });
}

template <typename T, typename Stored, bool kHasRule>
int ShortBlocksPerSm(const Context& context, int head_dim, int tile_rows) {
  int blocks = 0;
  WithHeadKind<T, Stored, kHasRule>(head_dim, [&](auto kind) {
    WithShortKernel<decltype(kind)>(context, tile_rows, [&](auto kernel, int shared_bytes) {
      if (shared_bytes > context.shared_bytes) return;
      AllowShared(kernel, shared_bytes);
      CheckCuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kBlockThreads,
                                                              static_cast<size_t>(shared_bytes)),
                "how many blocks of attention a multiprocessor holds");
    });
  });
  return blocks;
}

template <typename T, typename Stored>
bool HasInvariantTiles(const Context& context, int head_dim) {
  bool fits = false;
  WithHeadKind<T, Stored, false>(head_dim, [&](auto kind) {
    using Kind = decltype(kind);
    constexpr int kBytes = BlockPlan<Kind, 1, KeyOrder::kAllMerged>::kSharedBytes;
    static_assert(WarpAttentionSharedBytes<Kind>() <= kBytes);
    fits = kBytes <= context.shared_bytes;
  });
  return fits;
}

}  // namespace tandem::ops::cuda
