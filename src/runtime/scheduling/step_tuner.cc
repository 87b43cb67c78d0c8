#include "runtime/scheduling/step_tuner.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tandem {
namespace {

// Below this capacity a step takes that many sequences.
struct BatchStage {
  int64_t below;
  int64_t batch_size;
};
constexpr BatchStage kBatchStages[] = {
    {144, 128}, {336, 256}, {672, 512}, {832, 768}, {1280, 1024}, {1664, 1536},
};
// Larger capacities are rounded down to a multiple that is near.
constexpr int64_t kMultiple = 512;
constexpr int64_t kNear = 128;

// Least tokens of a step when prompts are at least this much longer than outputs.
struct TokenStage {
  double above_ratio;
  int64_t least_tokens;
};
constexpr TokenStage kTokenStages[] = {{2.0, 8192}, {0.5, 4096}};
constexpr int64_t kLeastTokens = 2048;

}  // namespace

int64_t TunedBatchSize(int64_t capacity) {
  for (const BatchStage& stage : kBatchStages) {
    if (capacity < stage.below) return stage.batch_size;
  }
  const int64_t rounded = capacity / kMultiple * kMultiple;
  return capacity - rounded < kNear ? rounded : capacity;
}

int64_t TunedNumTokens(int64_t batch_size, double input_tokens, double output_tokens) {
  const double ratio = input_tokens / std::max(output_tokens, 1.0);
  const double overlapped = std::floor(static_cast<double>(batch_size) * (1.0 + ratio));
  // Prompts have at most some millions of tokens, so that this is far from the largest integer.
  const auto rounded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(overlapped)));
  for (const TokenStage& stage : kTokenStages) {
    if (ratio > stage.above_ratio) return std::max(rounded, stage.least_tokens);
  }
  return std::max(rounded, kLeastTokens);
}

bool StepTuner::Observe(int32_t input_tokens, int32_t output_tokens) {
  if (!options_.batch_size && !options_.num_tokens) return false;
  Lengths& place = recent_[observed_ % kWindow];
  input_sum_ += input_tokens - place.input;
  output_sum_ += output_tokens - place.output;
  place = {input_tokens, output_tokens};
  ++observed_;

  const auto count = static_cast<double>(std::min(observed_, kWindow));
  const double input = static_cast<double>(input_sum_) / count;
  const double output = static_cast<double>(output_sum_) / count;
  StepBounds bounds = options_.most;
  if (options_.batch_size) {
    const auto blocks = static_cast<int64_t>(std::ceil((input + output) / options_.block_tokens));
    const int64_t tuned = TunedBatchSize(options_.num_blocks / std::max<int64_t>(blocks, 1));
    bounds.sequences = static_cast<int32_t>(std::min<int64_t>(bounds.sequences, tuned));
  }
  if (options_.num_tokens) {
    const int64_t tuned = TunedNumTokens(bounds.sequences, input, output);
    bounds.tokens = static_cast<int32_t>(std::min<int64_t>(bounds.tokens, tuned));
  }
  const bool changed = bounds != bounds_;
  bounds_ = bounds;
  return changed;
}

}  // namespace tandem
