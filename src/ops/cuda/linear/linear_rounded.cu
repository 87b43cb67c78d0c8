// A block takes 64 to 256 rows of the weight and one share of its columns. One thread asks the copy
// engine for tiles of 128 columns of the weights and of the tokens, as many as the ring in shared
// memory holds; the other threads multiply the tiles as they arrive. Weights are asked for before
// the previous kernel has ended. The blocks that share rows are a cluster and add up each other's
// sums at the end, in the order of the columns.
#include <cooperative_groups.h>
#include <cuda.h>

#include <vector>

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
//
// Blocks of whole rows may leave more of the GPU idle than the library does: 10,240 rows and 64
// tokens, at 0.61, take 35.6 us instead of its 28.7; 28,672 rows, at 0.85, take 34.9 instead of
// 36.4.
constexpr double kLeastBalance = 0.7;
// The fewest columns for which more than 64 tokens were measured.
constexpr int kLeastColsAbove64Tokens = 4096;
// Above 128 tokens the library computes 256 and is slower, except on rows too short to repay a
// block's start and end.
constexpr int kLeastColsAbove128Tokens = 8192;

// What a block multiplies at a time. kTokens: at most. kGroups: warpgroups that multiply.
// kRowTiles: how many times 64 rows each of them has. kMovesRegisters: a warpgroup copies instead
// of a warp, and hands registers over to those that multiply, whose sums need them.
template <int kTokens_, int kGroups_, bool kMovesRegisters_, int kRowTiles_ = 1>
struct Layout {
  static constexpr int kTokens = kTokens_;
  static constexpr int kGroups = kGroups_;
  static constexpr bool kMovesRegisters = kMovesRegisters_;
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kRows = kGroups * kRowTiles * kWarpgroupRows;
  struct Stage {
    char weights[kRows * kUnitBytes];
    char tokens[kTokens * kUnitBytes];
  };
  static constexpr int kSumThreads = kGroups * kWarpgroupThreads;
  static constexpr int kThreads = kSumThreads + (kMovesRegisters ? kWarpgroupThreads : 32);
  // The blocks of a multiprocessor hide each other's start and end. Where registers move, they
  // suffice for one block.
  static constexpr int kBlocksPerSm = kMovesRegisters ? 1 : kGroups == 1 ? 3 : 2;
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

// Starts the products of a warpgroup's rows and the tokens in 128 columns.
template <int kTokens>
__device__ inline void BeginUnit(float (&sums)[kTokens / 2], uint64_t rows, uint64_t tokens,
                                 bool add) {
#pragma unroll
  for (int i = 0; i < kProductsOfUnit; ++i) {
    BeginFp8Product<kTokens>(sums, rows + i * kNext16Columns, tokens + i * kNext16Columns,
                             add || i > 0);
  }
}

// Registers of a thread that copies and of one that multiplies, where they move: the 65,536 of a
// multiprocessor are 168 for each thread of three warpgroups, in eights.
constexpr int kCopyRegisters = 40;
constexpr int kSumRegisters = 232;
static_assert(kCopyRegisters + 2 * kSumRegisters == 3 * 168);

// grid: (blocks of rows * the cluster's size). T: type of the result. L: a Layout.
template <typename T, typename L>
__global__ void __launch_bounds__(L::kThreads, L::kBlocksPerSm)
    RoundedKernel([[maybe_unused]] const __grid_constant__ CUtensorMap weights,
                  [[maybe_unused]] const __grid_constant__ CUtensorMap tokens,
                  [[maybe_unused]] const RoundedProduct product) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kTokens = L::kTokens;
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
      InitBarrier(&block.empty[stage], 4 * L::kGroups);
    }
    PublishBarriers();
  }
  __syncthreads();

  if (thread >= L::kSumThreads) {
    if constexpr (L::kMovesRegisters) ShrinkRegistersTo<kCopyRegisters>();
    const bool copies = thread == L::kSumThreads;
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
    // Every thread of a cluster takes part in its two barriers below.
    if (num_blocks > 1) {
      cluster.sync();
      cluster.sync();
    }
    return;
  }

  if constexpr (L::kMovesRegisters) GrowRegistersTo<kSumRegisters>();
  BeginKernel();
  float sums[L::kRowTiles][kTokens / 2] = {};
  const int group = thread / kWarpgroupThreads;
  RingPlace<L::kStages> at;
  for (int unit = 0; unit < units; ++unit, at.Advance()) {
    WaitForPhase(&block.full[at.stage], at.parity);
    const char* const rows = block.stages[at.stage].weights + group * kWarpgroupRows * kUnitBytes;
    const uint64_t columns = DescribeTile(block.stages[at.stage].tokens);
    if constexpr (L::kRowTiles == 1) {
      // Running sums of fp8 products keep fewer bits than fp32 has (wgmma.cuh), so the sums of each
      // 128 columns are added up in fp32.
      float parts[kTokens / 2];
      BeginProducts();
      BeginUnit<kTokens>(parts, DescribeTile(rows), columns, false);
      CommitProducts();
      WaitForProducts(parts);
#pragma unroll
      for (int i = 0; i < kTokens / 2; ++i) sums[0][i] += parts[i];
    } else {
      // No registers are left for a second set, so these sums run over all columns.
      BeginProducts();
#pragma unroll
      for (int row_tile = 0; row_tile < L::kRowTiles; ++row_tile) {
        BeginUnit<kTokens>(sums[row_tile],
                           DescribeTile(rows + row_tile * L::kGroups * kWarpgroupRows * kUnitBytes),
                           columns, unit > 0);
      }
      CommitProducts();
#pragma unroll
      for (int row_tile = 0; row_tile < L::kRowTiles; ++row_tile) WaitForProducts(sums[row_tile]);
    }
    if (thread % 32 == 0) Arrive(&block.empty[at.stage]);
  }

  // The sums go through shared memory, so that neighbouring threads store neighbouring elements.
  // Before that all groups must have finished with the tiles there.
  const auto wait_for_groups = [] {
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(L::kSumThreads) : "memory");
  };
  wait_for_groups();
  auto* const partial = reinterpret_cast<float*>(block.stages);
#pragma unroll
  for (int row_tile = 0; row_tile < L::kRowTiles; ++row_tile) {
    const int row = row_tile * L::kGroups * kWarpgroupRows + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + thread % 4 * 2 + i % 2;
      partial[token * L::kPitch + row + i % 4 / 2 * 8] = sums[row_tile][i];
    }
  }
  if (num_blocks > 1) {
    cluster.sync();
  } else {
    wait_for_groups();
  }
  const int fours = product.tokens * (L::kRows / 4);
  for (int i = rank * L::kSumThreads + thread; i < fours; i += num_blocks * L::kSumThreads) {
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
  if (num_blocks > 1) cluster.sync();
#endif
}

// With more tokens a block takes more rows, which share them.
using For32Tokens = Layout<32, 1, false>;
using For64Tokens = Layout<64, 2, false>;
using For128Tokens = Layout<128, 2, true>;
using For192Tokens = Layout<192, 2, true>;
// The L2 cache gives a multiprocessor about 50 bytes a nanosecond, and with twice the rows a
// product needs fewer bytes of tokens. Its sums run over all columns, as the library's do.
using For192TokensWide = Layout<192, 2, true, 2>;

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

// How many clusters of this many blocks run at once; 0 if the driver refuses such clusters.
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
  if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess) return clusters;
  (void)cudaGetLastError();
  return 0;
}

// How a product is divided: blocks of rows, and blocks that share the columns of each.
struct Division {
  int64_t row_blocks = 0;
  int cluster = 1;
  // The mean load of the multiprocessors, as a part of the busiest one's.
  double balance = 0.0;
};

// The smallest cluster whose balance is within 5 % of the best. More than one block only where all
// clusters run at once. resident[n]: how many clusters of n blocks do.
Division Divide(const Context& context, const RoundedProduct& product, int block_rows,
                const std::vector<int>& resident) {
  const int64_t row_blocks = CeilDiv(product.rows, block_rows);
  const int64_t units = CeilDiv(product.cols, kUnitBytes);
  Division best;
  for (int cluster = 1; cluster <= kMaxCluster && cluster <= units; ++cluster) {
    const int64_t blocks = row_blocks * cluster;
    const int64_t busiest = CeilDiv(blocks, context.num_sms);
    const double balance =
        static_cast<double>(blocks) / static_cast<double>(busiest * context.num_sms);
    const bool fits = cluster == 1 || row_blocks <= resident[static_cast<size_t>(cluster)];
    if (cluster > 1 && (!fits || 0.95 * balance < best.balance)) continue;
    best = {row_blocks, cluster, balance};
  }
  return best;
}

bool IsDivided(const Division& division) { return division.cluster > 1; }
bool FillsTheGpu(const Division& division) { return division.balance > kLeastBalance; }

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
  Prepare<For32Tokens>();
  Prepare<For64Tokens>();
  Prepare<For128Tokens>();
  Prepare<For192Tokens>();
  Prepare<For192TokensWide>();
}

template <typename L>
void RoundedRunner::Prepare() {
  for (const DType output : {DType::kBF16, DType::kF16, DType::kF32}) {
    WithOutput(output, [&]<typename T>() {
      TakeSharedMemory(RoundedKernel<T, L>, static_cast<int>(sizeof(L)),
                       "shared memory of a product");
    });
  }
  std::vector<int>& resident = resident_[{L::kRows, L::kTokens}];
  resident = {0};
  for (int cluster = 1; cluster <= kMaxCluster; ++cluster) {
    if constexpr (L::kMovesRegisters) {
      resident.push_back(ResidentClusters(RoundedKernel<Bf16, L>, cluster, L::kThreads,
                                          static_cast<int>(sizeof(L))));
    } else {
      // Measured with these alone. Several blocks share a multiprocessor, so that an idle place
      // costs less.
      const bool measured = (cluster & (cluster - 1)) == 0;
      resident.push_back(measured ? L::kBlocksPerSm * context_.num_sms / cluster : 0);
    }
  }
}

bool RoundedRunner::Run(const RoundedProduct& product) const {
  TANDEM_CHECK(product.cols % 16 == 0 && product.rows % 4 == 0, "rows in pieces of 16 bytes");
  if (encode_ == nullptr) return false;
  const int tokens = product.tokens;
  const auto divided_or_full = [](const Division& division) {
    return IsDivided(division) || FillsTheGpu(division);
  };
  if (tokens <= 32) return RunIf<For32Tokens>(product, divided_or_full);
  if (tokens <= 64) return RunIf<For64Tokens>(product, divided_or_full);
  if (product.cols < kLeastColsAbove64Tokens) return false;
  if (tokens <= 128) return RunIf<For128Tokens>(product, IsDivided);
  if (tokens > 192 || product.cols < kLeastColsAbove128Tokens) return false;
  const auto undivided_and_full = [](const Division& division) {
    return !IsDivided(division) && FillsTheGpu(division);
  };
  return RunIf<For192TokensWide>(product, undivided_and_full) ||
         RunIf<For192Tokens>(product, [](const Division&) { return true; });
}

template <typename L, typename Takes>
bool RoundedRunner::RunIf(const RoundedProduct& product, const Takes& takes) const {
  const Division division =
      Divide(context_, product, L::kRows, resident_.at({L::kRows, L::kTokens}));
  if (!takes(division)) return false;
  const CUtensorMap weights =
      Describe(encode_, product.weight, product.rows, product.cols, L::kRows);
  const CUtensorMap tokens = Describe(encode_, product.x, product.tokens, product.cols, L::kTokens);
  const dim3 blocks(static_cast<unsigned>(division.row_blocks * division.cluster));
  WithOutput(product.output, [&]<typename T>() {
    LaunchEarlyInClusters(context_, "a product of rounded rows", division.cluster,
                          RoundedKernel<T, L>, blocks, L::kThreads, static_cast<int>(sizeof(L)),
                          weights, tokens, product);
  });
  return true;
}

}  // namespace tandem::ops::cuda
