#include "runtime/scheduling/step_limits.h"

namespace tandem {
namespace {

// Blocks that hold any of `rows` successive tokens, where `sequences` divide the rows: r of them
// touch most where they begin with a block's last token, (r + 2 (block_tokens - 1)) / block_tokens
// blocks.
int64_t BlocksTouched(int64_t rows, int64_t sequences, int64_t block_tokens) {
  return (rows + 2 * sequences * (block_tokens - 1)) / block_tokens;
}

}  // namespace

// A sequence that has computed c tokens holds
// - the blocks before that of token c of which token c still sees anything: it sees window_tokens
//   - 1 tokens before itself;
// - from the block of token c on, those for the rows of the steps that have not landed, which are
//   max_launched * max_num_tokens together. What drafts leave that were rejected is released
//   (TrimWindows), except for the row after the last;
// - or for that, if none of its steps has landed, the block that it copies from.
int64_t StepLimits::MaxWindowBlocks(int64_t window_tokens, int32_t block_tokens) const {
  if (window_tokens == 0) return 0;
  const int64_t slots = max_batch_size;
  const int64_t seen = (window_tokens - 1 + block_tokens - 1) / block_tokens;
  const int64_t rows = int64_t{max_launched} * max_num_tokens + slots * block_tokens;
  return slots * seen + BlocksTouched(rows, slots, block_tokens);
}

// The plan's rows get new ones. The tree takes over at most those of the blocks that the rows of a
// step complete, and all steps in flight after a plan, at most max_launched, may land before the
// next one.
int32_t StepLimits::MaxMappings(int32_t block_tokens) const {
  return static_cast<int32_t>((1 + max_launched) *
                              BlocksTouched(max_num_tokens, max_batch_size, block_tokens));
}

}  // namespace tandem
