// Launches of our own matrix kernels. All sum in the order of linear_fragments.cuh, so they agree
// bit for bit. T: type of the activations (Bf16, Fp16); W: of the weights (T, Fp8, Int8 or Int4).
#pragma once

#include "ops/cuda/linear_fragments.cuh"

namespace tandem::ops::cuda {

// Largest number of tokens for LaunchStreaming.
constexpr int kMaxStreamingTokens = 16;

// For few tokens, weights of the activations' type: streams them through registers once.
template <typename T>
void LaunchStreaming(const Context& context, const LinearArgs& args);

// As LaunchStreaming, for weights that hold `rows` gate rows followed by the same number of up
// rows: stores silu(gate) * up of the rounded products, with the same bits as the product followed
// by SwiGlu. Only if HasWholeUnits(args).
template <typename T>
void LaunchStreamingGated(const Context& context, const LinearArgs& args);

// The same for quantized weights, through shared memory. Gated Int4 only if the number of gate rows
// is a multiple of 16.
template <typename T, typename W>
void LaunchStreamingQuantized(const Context& context, const LinearArgs& args);
template <typename T, typename W>
void LaunchStreamingQuantizedGated(const Context& context, const LinearArgs& args);

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
// Call once per device before the first LaunchTiled.
void PrepareTiled();

}  // namespace tandem::ops::cuda
