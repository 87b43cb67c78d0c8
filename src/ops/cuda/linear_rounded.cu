// A block takes 64 or 128 rows of the weight and one share of its columns. A thread of its last
// warp asks the copy engine for tiles of 128 columns of the weights and of the tokens, as many as
// the ring in shared memory holds; the other warps multiply what has come. Weights are asked for
// before the previous kernel has ended. The blocks that share rows are a cluster and add up each
// other's sums at the end, in the order of the columns.
#include <cooperative_groups.h>
#include <cuda.h>

#include <algorithm>

#include "ops/cuda/async_copy.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/linear_rounded.cuh"
#include "ops/cuda/wgmma.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kUnitBytes = 128;  // of a row in a tile: as many columns
constexpr int kProductsOfUnit = 4;
constexpr int kMaxCluster = 8;

// kTokens: of a tile, at most. kGroups: warpgroups, with 64 rows each. A warp more copies.
template <int kTokens, int kGroups>
struct Layout {
  static constexpr int kRows = kGroups * kWarpgroupRows;
  static constexpr int kThreads = kGroups * kWarpgroupThreads + 32;
  struct Stage {
    char weights[kRows * kUnitBytes];
    char tokens[kTokens * kUnitBytes];
  };
  static constexpr int kBlocksPerSm = kTokens <= 32 ? 3 : 2;
  static constexpr int kStages =
      (224 * 1024 / kBlocksPerSm - 2048) / static_cast<int>(sizeof(Stage));
  // The pitch keeps the lanes' stores in different banks.
  static constexpr int kPitch = kRows + 4;

  Stage stages[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];

  static_assert(sizeof(Stage) % 1024 == 0 && kStages >= 3);
  static_assert(kTokens * kPitch * sizeof(float) <= sizeof(stages));
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ void ExpectBytes(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
// Copies a tile of the matrix, from (row, col) on; zeros outside of it. By one thread.
__device__ void CopyTile(void* to, const CUtensorMap& matrix, int row, int col, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(SharedAddress(to)),
      "l"(&matrix), "r"(SharedAddress(barrier)), "r"(col), "r"(row)
      : "memory");
}

template <typename T>
__device__ void StoreFour(T* to, const float (&values)[4]) {
  if constexpr (std::is_same_v<T, float>) {
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
  } else {
    Pack<T, 4> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.at[i] = FromFloat<T>(values[i]);
    StorePack<T, 4>(to, four);
  }
}
#endif

// grid: (blocks of rows * the cluster's size). T: type of the result.
template <typename T, int kTokens, int kGroups>
__global__ void __launch_bounds__(Layout<kTokens, kGroups>::kThreads,
                                  Layout<kTokens, kGroups>::kBlocksPerSm)
    RoundedKernel([[maybe_unused]] const __grid_constant__ CUtensorMap weights,
                  [[maybe_unused]] const __grid_constant__ CUtensorMap tokens,
                  [[maybe_unused]] const RoundedProduct product) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using L = Layout<kTokens, kGroups>;
  extern __shared__ __align__(1024) char shared[];
  auto& block = *reinterpret_cast<L*>(shared);
  const auto cluster = cooperative_groups::this_cluster();
  const auto num_blocks = static_cast<int>(cluster.num_blocks());
  const auto rank = static_cast<int>(cluster.block_rank());
  const int first_row = static_cast<int>(blockIdx.x) / num_blocks * L::kRows;
  const int all_units = (product.cols + kUnitBytes - 1) / kUnitBytes;
  const int begin = all_units * rank / num_blocks;
  const int units = all_units * (rank + 1) / num_blocks - begin;
  const auto thread = static_cast<int>(threadIdx.x);

  if (thread == 0) {
    for (int stage = 0; stage < L::kStages; ++stage) {
      InitBarrier(&block.full[stage], 1);
      InitBarrier(&block.empty[stage], 4 * kGroups);
    }
    PublishBarriers();
  }
  __syncthreads();

  float sums[kTokens / 2] = {};
  if (thread >= kGroups * kWarpgroupThreads) {
    const bool copies = thread == kGroups * kWarpgroupThreads;
    const auto copy_weights = [&](int unit, int stage) {
      ExpectBytes(&block.full[stage], sizeof(typename L::Stage));
      CopyTile(block.stages[stage].weights, weights, first_row, (begin + unit) * kUnitBytes,
               &block.full[stage]);
    };
    const auto copy_tokens = [&](int unit, int stage) {
      CopyTile(block.stages[stage].tokens, tokens, 0, (begin + unit) * kUnitBytes,
               &block.full[stage]);
    };
    const int at_once = min(units, L::kStages);
    if (copies) {
      for (int unit = 0; unit < at_once; ++unit) copy_weights(unit, unit);
    }
    BeginKernel();
    if (copies) {
      SeeEarlierStores();
      for (int unit = 0; unit < at_once; ++unit) copy_tokens(unit, unit);
      int stage = 0;
      uint32_t parity = 0;
      for (int unit = at_once; unit < units; ++unit) {
        WaitForPhase(&block.empty[stage], parity);
        copy_weights(unit, stage);
        copy_tokens(unit, stage);
        if (++stage == L::kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
    __syncwarp();
  } else {
    BeginKernel();
    const int group = thread / kWarpgroupThreads;
    int stage = 0;
    uint32_t parity = 0;
    for (int unit = 0; unit < units; ++unit) {
      WaitForPhase(&block.full[stage], parity);
      uint64_t rows =
          DescribeTile(block.stages[stage].weights + group * kWarpgroupRows * kUnitBytes);
      uint64_t columns = DescribeTile(block.stages[stage].tokens);
      // The matrix unit keeps fewer bits of a running sum than fp32 has, so each unit's is added
      // up apart.
      float parts[kTokens / 2];
      BeginProducts();
#pragma unroll
      for (int i = 0; i < kProductsOfUnit; ++i) {
        BeginFp8Product<kTokens>(parts, rows, columns, i > 0);
        rows += kNext32Bytes;
        columns += kNext32Bytes;
      }
      CommitProducts();
      WaitForProducts(parts);
      if (thread % 32 == 0) Arrive(&block.empty[stage]);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[i] += parts[i];
      if (++stage == L::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // Through shared memory, so that neighbouring threads store neighbouring elements.
  __syncthreads();
  auto* const partial = reinterpret_cast<float*>(block.stages);
  if (thread < kGroups * kWarpgroupThreads) {
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + thread % 4 * 2 + i % 2;
      partial[token * L::kPitch + row + i % 4 / 2 * 8] = sums[i];
    }
  }
  cluster.sync();
  const int fours = product.tokens * (L::kRows / 4);
  for (int i = rank * L::kThreads + thread; i < fours; i += num_blocks * L::kThreads) {
    const int token = i / (L::kRows / 4);
    const int in_block = i % (L::kRows / 4) * 4;
    const int row = first_row + in_block;
    if (row >= product.rows) continue;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int other = 0; other < num_blocks; ++other) {
      const float4 part = *reinterpret_cast<const float4*>(cluster.map_shared_rank(partial, other) +
                                                           token * L::kPitch + in_block);
      sum.x += part.x;
      sum.y += part.y;
      sum.z += part.z;
      sum.w += part.w;
    }
    float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const float token_scale = product.token_scales[token];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      values[k] *= token_scale * __ldg(&product.row_scales[row + k]);
      if (product.bias != nullptr) values[k] += __ldg(&product.bias[row + k]);
    }
    StoreFour(static_cast<T*>(product.out) + static_cast<int64_t>(token) * product.rows + row,
              values);
  }
  // The others read this block's sums.
  cluster.sync();
#endif
}

// Calls call.operator()<kTokens, kGroups>() with the sizes of a block for this many tokens. With
// more tokens a block takes more rows, which share them.
template <typename Call>
void WithTile(int64_t tokens, const Call& call) {
  if (tokens <= 32) {
    call.template operator()<32, 1>();
  } else {
    call.template operator()<64, 2>();
  }
}

template <typename Call>
void WithOutput(DType output, const Call& call) {
  switch (output) {
    case DType::kBF16:
      return call.template operator()<Bf16>();
    case DType::kF16:
      return call.template operator()<Fp16>();
    default:
      return call.template operator()<float>();
  }
}

// Blocks that share the columns of the same rows: the fewest with which no multiprocessor has much
// more to read than another.
int ClusterFor(const Context& context, int64_t row_blocks, int64_t units) {
  int best = 1;
  double best_share = 0.0;
  for (int cluster = 1; cluster <= kMaxCluster && cluster <= units; cluster *= 2) {
    const double share =
        static_cast<double>(CeilDiv(row_blocks * cluster, context.num_sms)) / cluster;
    if (cluster == 1 || share < 0.95 * best_share) {
      best = cluster;
      best_share = share;
    }
  }
  return best;
}

// A matrix of bytes [rows, cols], to be copied in tiles of `tile_rows` rows of 128 bytes, with the
// places of DescribeTile.
CUtensorMap Describe(void* encode, const void* data, int64_t rows, int64_t cols, int tile_rows) {
  CUtensorMap matrix{};
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(cols)};
  const cuuint32_t tile[2] = {kUnitBytes, static_cast<cuuint32_t>(tile_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(
      &matrix, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(data), sizes, pitch, tile, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TANDEM_CHECK(result == CUDA_SUCCESS, "a matrix that the copy engine takes");
  return matrix;
}

}  // namespace

RoundedRunner::RoundedRunner(const Context& context) : context_(context) {
  if (!HasWarpgroups(context)) return;
  constexpr unsigned kSince = 12000;  // the CUDA version whose function is meant
  cudaDriverEntryPointQueryResult found{};
  CheckCuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode_, kSince,
                                             cudaEnableDefault, &found),
            "the driver's descriptions of matrices");
  if (found != cudaDriverEntryPointSuccess) encode_ = nullptr;
  for (const int64_t tokens : {32, 64}) {
    WithTile(tokens, [&]<int kTokens, int kGroups>() {
      for (const DType output : {DType::kBF16, DType::kF16, DType::kF32}) {
        WithOutput(output, [&]<typename T>() {
          TakeSharedMemory(RoundedKernel<T, kTokens, kGroups>,
                           static_cast<int>(sizeof(Layout<kTokens, kGroups>)),
                           "shared memory of a product");
        });
      }
    });
  }
}

void RoundedRunner::Run(const RoundedProduct& product) const {
  TANDEM_CHECK(Takes(product.tokens, product.rows), "rounded rows that our own kernel takes");
  WithTile(product.tokens, [&]<int kTokens, int kGroups>() {
    using L = Layout<kTokens, kGroups>;
    const CUtensorMap weights =
        Describe(encode_, product.weight, product.rows, product.cols, L::kRows);
    const CUtensorMap tokens = Describe(encode_, product.x, product.tokens, product.cols, kTokens);
    const int64_t row_blocks = CeilDiv(product.rows, L::kRows);
    const int cluster = ClusterFor(context_, row_blocks, CeilDiv(product.cols, kUnitBytes));
    WithOutput(product.output, [&]<typename T>() {
      LaunchEarlyInClusters(context_, "a product of rounded rows", cluster,
                            RoundedKernel<T, kTokens, kGroups>,
                            dim3(static_cast<unsigned>(row_blocks * cluster)), L::kThreads,
                            static_cast<int>(sizeof(L)), weights, tokens, product);
    });
  });
}

}  // namespace tandem::ops::cuda
