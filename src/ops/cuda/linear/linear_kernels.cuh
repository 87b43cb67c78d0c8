// Launches of our own matrix kernels. All sum in the order of linear_fragments.cuh, so they agree
// bit for bit. T: type of the activations (Bf16, Fp16); W: of the weights (T, Fp8, Int8 or Int4).
#pragma once

#include "ops/cuda/linear/linear_fragments.cuh"
#include "ops/cuda/linear/product_epilogue.cuh"

namespace tandem::ops::cuda {

// Where one product of an expert finds what PackLinear made, in device memory; null: not there.
struct ExpertParts {
  const void* weight;
  const void* scales;
  const void* zeros;
  const float* bias;
  const float* input_factors;
  const int32_t* input_order;
};
// Rows that go through one expert: `count` of them, at most the plan's tile, from place `first` on.
struct ExpertItem {
  int32_t expert;
  int32_t first;
  int32_t count;
};
// One product of many experts: items, whose number only the device knows. All experts are of one
// shape and format.
struct ExpertProduct {
  // x, out: of place 0; without tokens and the members of ExpertParts. sources: of all places, only
  // for the streaming kernels; x is then not in the order of places.
  LinearArgs args;
  const ExpertParts* experts = nullptr;
  const ExpertItem* items = nullptr;
  const int32_t* num_items = nullptr;
  int most_items = 0;  // upper bound of *num_items
  int tile = 0;        // rows of an item, at most
};

// A grid of `per_sm` blocks on each SM, but no more blocks than units.
inline dim3 BlocksOfUnits(const Context& context, int per_sm, int64_t most_units) {
  const int64_t places = int64_t{per_sm} * (context.num_sms > 0 ? context.num_sms : 1);
  return dim3(static_cast<unsigned>(most_units < places ? most_units : places));
}

// The product of an item. By one thread.
template <typename T, typename W>
__device__ inline void MakeItemArgs(const ExpertProduct& product, int index, LinearArgs& args) {
  const ExpertItem item = product.items[index];
  const ExpertParts parts = product.experts[item.expert];
  args = product.args;
  if (args.sources == nullptr) {
    args.x = static_cast<const T*>(args.x) + static_cast<int64_t>(item.first) * args.cols;
  } else {
    args.sources += item.first;
  }
  args.out = static_cast<T*>(args.out) + static_cast<int64_t>(item.first) * args.rows;
  args.weight = parts.weight;
  args.bias = parts.bias;
  if constexpr (kIsInt4<W>) {
    args.group_scales = static_cast<const float2*>(parts.scales);
    args.group_zeros = static_cast<const uint32_t*>(parts.zeros);
  } else {
    args.scales = static_cast<const float*>(parts.scales);
  }
  args.tokens = item.count;
}

// For few tokens: streams the weights through shared memory once.
template <typename T, typename W>
void LaunchStreaming(const Context& context, const LinearArgs& args);

// As LaunchStreaming, for weights that hold `rows` gate rows followed by the same number of up
// rows: stores silu(gate) * up of the rounded products, with the same bits as the product followed
// by SwiGlu. Only if HasWholeUnits(args), and of Int4 only if the number of gate rows is a multiple
// of 16.
template <typename T, typename W>
void LaunchStreamingGated(const Context& context, const LinearArgs& args);

// As LaunchStreaming, followed by what QkvRopeStore does with the result, with the same bits; what
// it leaves of keys and values in job.qkv is not said. args.rows is half the weight's rows, of
// which args.half_head are half a head, all of which turns by one position. Only if
// HasWholeUnits(args) and for a multiple of kHalfHeadMultiple<W>.
template <typename T, typename W>
void LaunchStreamingTurned(const Context& context, const LinearArgs& args, const RopeJob& job);
template <typename W>
constexpr int kHalfHeadMultiple = kIsInt4<W> ? 16 : 8;

// As LaunchStreaming for bf16, but the results are added as `job` says. Only if HasWholeUnits(args)
// and for whole tiles of kAddedRowsMultiple rows.
template <typename T, typename W>
void LaunchStreamingAdded(const Context& context, const LinearArgs& args, const AddJob& job);
constexpr int kAddedRowsMultiple = 64;

// As LaunchStreaming and LaunchStreamingGated for the items of a plan, with tiles of at most
// kMaxStreamingTokens rows: blocks take parts of the products in turn. First for weights of the
// activations' type, then for quantized ones.
template <typename T>
void LaunchWideExperts(const Context& context, const ExpertProduct& product);
template <typename T>
void LaunchWideExpertsGated(const Context& context, const ExpertProduct& product);
template <typename T, typename W>
void LaunchQuantizedExperts(const Context& context, const ExpertProduct& product);
template <typename T, typename W>
void LaunchQuantizedExpertsGated(const Context& context, const ExpertProduct& product);

// For many tokens, only where HasWarpgroups: `arranged` is device memory for kArrangedBytes.
template <typename T, typename W>
void LaunchWarpgroup(const Context& context, const LinearArgs& args, void* arranged);
// Call once per device before the first LaunchWarpgroup.
void PrepareWarpgroup();

constexpr size_t kArrangedBytes = size_t{64} << 20;
// Largest number of tokens for one LaunchWarpgroup: more tokens would be evicted from L2 before all
// rows have used them. 0 if rows are too long.
constexpr int WarpgroupTokens(int64_t cols) {
  constexpr int64_t kMost = 2048;
  constexpr int64_t kTile = 128;
  const int64_t bytes = CeilDiv(cols, kUnitCols) * kUnitCols * 2;
  const int64_t fitting = static_cast<int64_t>(kArrangedBytes) / bytes / kTile * kTile;
  return static_cast<int>(fitting < kMost ? fitting : kMost);
}

// For any number of tokens: tiles in shared memory.
template <typename T, typename W>
void LaunchTiled(const Context& context, const LinearArgs& args);
// The same for the items of a plan with tiles of kTiledTokens rows.
constexpr int kTiledTokens = 64;
template <typename T, typename W>
void LaunchTiledExperts(const Context& context, const ExpertProduct& product);
// Call once per device before the first LaunchTiled.
void PrepareTiled();

}  // namespace tandem::ops::cuda
