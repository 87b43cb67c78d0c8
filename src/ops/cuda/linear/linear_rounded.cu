// A block takes 64 or 128 rows of the weight and one share of its columns. The thread after those
// that multiply asks the copy engine for tiles of 128 columns of the weights and of the tokens, as
// many as the ring in shared memory holds; the others multiply what has come. Weights are asked for
// before the previous kernel has ended. The blocks that share rows are a cluster and add up each
// other's sums at the end, in the order of the columns.
#include <cooperative_groups.h>
#include <cuda.h>

#include <type_traits>

#include "ops/cuda/device/async_copy.cuh"
#include "ops/cuda/device/dependent_launch.cuh"
#include "ops/cuda/device/elements.cuh"
#include "ops/cuda/device/wgmma.cuh"
#include "ops/cuda/linear/linear_rounded.cuh"

namespace tandem::ops::cuda {
namespace {

constexpr int kUnitBytes = 128;  // of a row in a tile: as many columns
constexpr int kProductsOfUnit = 4;
constexpr int kMaxCluster = 8;
// Where the library is faster was measured: bench/results/h200-2026-11.md, "Products of 17 to 64
// rounded rows" and "Products of 65 to 192 rounded rows".
constexpr int kFewTokens = 64;
constexpr int kMaxTokens = 192;
// Blocks of whole rows may leave more of the GPU idle than the library does: 10,240 rows and 64
// tokens, at 0.61, take 35.6 us instead of its 28.7; 28,672 rows, at 0.85, take 34.9 instead of
// 36.4.
constexpr double kLeastBalance = 0.7;
// With more than 128 tokens the library computes 256, and so is slower except in rows too short for
// what a block begins and ends with.
constexpr int kLeastColsOfMost = 8192;

// kTokens: of a tile, at most. kGroups: warpgroups, with 64 rows each. A warp more copies, or with
// many tokens a warpgroup, which gives its registers to the others' sums.
template <int kTokens, int kGroups>
struct Layout {
  static constexpr int kRows = kGroups * kWarpgroupRows;
  struct Stage {
    char weights[kRows * kUnitBytes];
    char tokens[kTokens * kUnitBytes];
  };
  static constexpr bool kManyTokens = kTokens > kFewTokens;
  static constexpr int kThreads =
      kGroups * kWarpgroupThreads + (kManyTokens ? kWarpgroupThreads : 32);
  // The blocks of a multiprocessor hide each other's start and end. The sums of many tokens leave
  // registers for one.
  static constexpr int kBlocksPerSm = kManyTokens ? 1 : kGroups == 1 ? 3 : 2;
  // A multiprocessor has 228 KB, of which the system takes 1 KB a block; the barriers need less
  // than another.
  static constexpr int kStages =
      (228 * 1024 / kBlocksPerSm - 2 * 1024) / static_cast<int>(sizeof(Stage));
  // The pitch keeps the lanes' stores in different banks.
  static constexpr int kPitch = kRows + 4;

  Stage stages[kStages];
  uint64_t full[kStages];
  uint64_t empty[kStages];

  static_assert(sizeof(Stage) % 1024 == 0 && kStages >= 3);
  static_assert(kTokens * kPitch * sizeof(float) <= sizeof(stages));
};

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

  if (thread >= kGroups * kWarpgroupThreads) {
    if constexpr (L::kManyTokens) GiveRegisters<40>();
    const bool copies = thread == kGroups * kWarpgroupThreads;
    const auto copy_weights = [&](int unit, int stage) {
      AnnounceBytes(&block.full[stage], sizeof(typename L::Stage));
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
      RingPlace<L::kStages> at;
      for (int unit = at_once; unit < units; ++unit, at.Advance()) {
        WaitForPhase(&block.empty[at.stage], at.parity);
        copy_weights(unit, at.stage);
        copy_tokens(unit, at.stage);
      }
    }
    __syncwarp();
    // As the others below.
    cluster.sync();
    cluster.sync();
    return;
  }

  if constexpr (L::kManyTokens) TakeRegisters<232>();
  BeginKernel();
  float sums[kTokens / 2] = {};
  const int group = thread / kWarpgroupThreads;
  RingPlace<L::kStages> at;
  for (int unit = 0; unit < units; ++unit, at.Advance()) {
    WaitForPhase(&block.full[at.stage], at.parity);
    uint64_t rows =
        DescribeTile(block.stages[at.stage].weights + group * kWarpgroupRows * kUnitBytes);
    uint64_t columns = DescribeTile(block.stages[at.stage].tokens);
    // Running sums of fp8 products keep fewer bits than fp32 has (wgmma.cuh), so the sums of each
    // 128 columns are added up in fp32.
    float parts[kTokens / 2];
    BeginProducts();
#pragma unroll
    for (int i = 0; i < kProductsOfUnit; ++i) {
      BeginFp8Product<kTokens>(parts, rows, columns, i > 0);
      rows += kNext16Columns;
      columns += kNext16Columns;
    }
    CommitProducts();
    WaitForProducts(parts);
    if (thread % 32 == 0) Arrive(&block.empty[at.stage]);
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) sums[i] += parts[i];
  }

  // Through shared memory, so that neighbouring threads store neighbouring elements: once all
  // groups have multiplied what lay there.
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(kGroups * kWarpgroupThreads) : "memory");
  auto* const partial = reinterpret_cast<float*>(block.stages);
  const int sum_row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
  for (int i = 0; i < kTokens / 2; ++i) {
    const int token = i / 4 * 8 + thread % 4 * 2 + i % 2;
    partial[token * L::kPitch + sum_row + i % 4 / 2 * 8] = sums[i];
  }
  cluster.sync();
  constexpr int kSumThreads = kGroups * kWarpgroupThreads;
  const int fours = product.tokens * (L::kRows / 4);
  for (int i = rank * kSumThreads + thread; i < fours; i += num_blocks * kSumThreads) {
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
    const float token_scale = product.token_scales[token];
    const auto result = [&](float value, int of_row) {
      const float scaled = value * token_scale * __ldg(&product.row_scales[of_row]);
      return product.bias == nullptr ? scaled : scaled + __ldg(&product.bias[of_row]);
    };
    StoreFour(static_cast<T*>(product.out) + static_cast<int64_t>(token) * product.rows + row,
              make_float4(result(sum.x, row), result(sum.y, row + 1), result(sum.z, row + 2),
                          result(sum.w, row + 3)));
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
  } else if (tokens <= 64) {
    call.template operator()<64, 2>();
  } else if (tokens <= 128) {
    call.template operator()<128, 2>();
  } else {
    call.template operator()<192, 2>();
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

// How many clusters of this many blocks run at once. Keeps a failure.
template <typename Kernel>
int ResidentClusters(Kernel* kernel, int cluster, int threads, int shared_bytes) {
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &size;
  config.numAttrs = 1;
  int clusters = 0;
  CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "asking for clusters");
  return clusters;
}

// How a product is divided: blocks of rows, and blocks that share the columns of each.
struct Division {
  int64_t row_blocks = 0;
  int cluster = 1;
  // The mean load of the multiprocessors, as a part of the busiest one's.
  double balance = 0.0;
};

// The smallest cluster whose balance is within 5 % of the best. More than one block only where all
// clusters run at once: resident(size) of that size do.
template <typename Resident>
Division Divide(const Context& context, const RoundedProduct& product, int block_rows,
                const Resident& resident) {
  const int64_t row_blocks = CeilDiv(product.rows, block_rows);
  const int64_t units = CeilDiv(product.cols, kUnitBytes);
  Division best;
  for (int cluster = 1; cluster <= kMaxCluster && cluster <= units; ++cluster) {
    const int64_t blocks = row_blocks * cluster;
    const int64_t busiest = CeilDiv(blocks, context.num_sms);
    const double balance =
        static_cast<double>(blocks) / static_cast<double>(busiest * context.num_sms);
    const bool fits = cluster == 1 || row_blocks <= resident(cluster);
    if (cluster > 1 && (!fits || 0.95 * balance < best.balance)) continue;
    best = {row_blocks, cluster, balance};
  }
  return best;
}

bool IsFasterThanLibrary(const RoundedProduct& product, const Division& division) {
  if (product.tokens <= kFewTokens) return division.cluster > 1 || division.balance > kLeastBalance;
  if (product.tokens <= 128) return division.cluster > 1;
  return product.cols >= kLeastColsOfMost;
}

// A matrix of bytes [rows, cols], to be copied in tiles of `tile_rows` rows of 128 bytes, with the
// places of DescribeTile. Keeps a failure; the driver also returns one here that followed from an
// earlier kernel's.
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
  // The driver's codes are the runtime's.
  CheckCuda(static_cast<cudaError_t>(result), "describing a matrix to the copy engine");
  return matrix;
}

}  // namespace

RoundedRunner::RoundedRunner(const Context& context) : context_(context) {
  if (!HasWarpgroups(context)) return;
  encode_ = DriverFunction("cuTensorMapEncodeTiled");
  for (const int64_t tokens : {32, 64, 128, 192}) {
    WithTile(tokens, [&]<int kTokens, int kGroups>() {
      using L = Layout<kTokens, kGroups>;
      for (const DType output : {DType::kBF16, DType::kF16, DType::kF32}) {
        WithOutput(output, [&]<typename T>() {
          TakeSharedMemory(RoundedKernel<T, kTokens, kGroups>, static_cast<int>(sizeof(L)),
                           "shared memory of a product");
        });
      }
      for (int cluster = 1; cluster <= kMaxCluster; ++cluster) {
        resident_[{kTokens, cluster}] =
            ResidentClusters(RoundedKernel<Bf16, kTokens, kGroups>, cluster, L::kThreads,
                             static_cast<int>(sizeof(L)));
      }
    });
  }
}

bool RoundedRunner::Run(const RoundedProduct& product) const {
  TANDEM_CHECK(product.cols % 16 == 0 && product.rows % 4 == 0, "rows in pieces of 16 bytes");
  if (encode_ == nullptr || product.tokens > kMaxTokens) return false;
  bool takes = false;
  WithTile(product.tokens, [&]<int kTokens, int kGroups>() {
    using L = Layout<kTokens, kGroups>;
    const Division division = Divide(context_, product, L::kRows,
                                     [&](int cluster) { return resident_.at({kTokens, cluster}); });
    takes = IsFasterThanLibrary(product, division);
    if (!takes) return;
    const CUtensorMap weights =
        Describe(encode_, product.weight, product.rows, product.cols, L::kRows);
    const CUtensorMap tokens = Describe(encode_, product.x, product.tokens, product.cols, kTokens);
    const dim3 blocks(static_cast<unsigned>(division.row_blocks * division.cluster));
    WithOutput(product.output, [&]<typename T>() {
      LaunchEarlyInClusters(context_, "a product of rounded rows", division.cluster,
                            RoundedKernel<T, kTokens, kGroups>, blocks, L::kThreads,
                            static_cast<int>(sizeof(L)), weights, tokens, product);
    });
  });
  return takes;
}

}  // namespace tandem::ops::cuda
