// Launches of our own matrix kernels. Both sum in the order of linear_fragments.cuh, so they agree
// bit for bit. T: type of the activations (Bf16, __half); W: of the weights (T or Fp8).
#pragma once

#include "ops/cuda/linear_fragments.cuh"

namespace tandem::ops::cuda {

// Tokens that LaunchStreaming takes at most.
constexpr int kMaxStreamingTokens = 16;

// For few tokens: streams the weights through registers once.
template <typename T, typename W>
void LaunchStreaming(const Context& context, const LinearArgs& args);

// As LaunchStreaming, for weights that hold `rows` gate rows and then as many up rows: stores
// silu(gate) * up of the rounded products, the bits of the product and SwiGlu one after the other.
// x: 16-byte aligned rows.
template <typename T, typename W>
void LaunchStreamingGated(const Context& context, const LinearArgs& args);

// For any number of tokens: tiles in shared memory.
template <typename T, typename W>
void LaunchTiled(const Context& context, const LinearArgs& args);
// Once for a device before the first LaunchTiled.
void PrepareTiled();

}  // namespace tandem::ops::cuda
