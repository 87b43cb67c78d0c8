// BatchPlan: one step as plain data, written by the scheduler, run by an executor, and complete in
// itself (it could be broadcast to other ranks). Ranges count from the sequence's own computed
// length, which the executor resolves where that length is stored (on the device), so that a plan
// can be made while the previous step is still in flight. A prefill chunk, a decode step, a
// verification and a draft's catch-up differ only in length.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "runtime/cache/kv_cache.h"

namespace tandem {

struct SequencePlan {
  int32_t slot = 0;
  // Known tokens the target computes in this step, starting at its computed length: a prefill
  // chunk's length, or 1 for a decoding sequence.
  int32_t target_tokens = 0;
  // The chunk reaches the last known token: a next token is drawn.
  bool samples = false;
  // Draft length k: at most this many drafts are proposed, and verified after the target's range.
  int32_t num_drafts = 0;
  // They are the first ones that the client sent, instead of proposals.
  bool sent = false;
  // Known tokens the draft model computes in this step, starting at its computed length, at most.
  // With num_drafts > 0 this is an upper bound of the draft's lag (at least 1), else a catch-up.
  int32_t draft_tokens = 0;
  // Blocks to append to the slot's own: num_new_blocks of them in BatchPlan::blocks.
  int32_t first_new_block = 0;
  int32_t num_new_blocks = 0;
  // The client gets the logits of all target_tokens; of the tokens drawn.
  bool keeps_context = false;
  bool keeps_drawn = false;

  // Rows of logits beyond the one that a step has for every slot.
  int32_t SpareLogits() const {
    const int32_t context = keeps_context ? target_tokens - 1 : 0;
    return context + num_drafts;
  }
};

// Copies the first `tokens` of a block before the step runs (partial prefix reuse).
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
  int32_t tokens = 0;
  // Their window blocks; -1: there are none.
  WindowBlockId from_window = -1;
  WindowBlockId to_window = -1;
};

// Reused from step to step: Clear keeps the memory.
struct BatchPlan {
  uint64_t step = 0;
  std::vector<SequencePlan> sequences;
  std::vector<BlockId> blocks;  // the new blocks of all sequences, back to back
  std::vector<BlockCopy> copies;
  std::vector<WindowMapping> mappings;  // made since the plan before; of two for a block the later
  // Between device and host, before the step runs and beside the steps before it: HostTier says
  // which of them may overlap.
  std::vector<HostCopy> host_copies;

  bool empty() const { return sequences.empty(); }
  std::span<const BlockId> NewBlocks(const SequencePlan& s) const {
    return std::span(blocks).subspan(s.first_new_block, s.num_new_blocks);
  }
  // No sequence computes more than its last emitted token.
  bool OnlyDecodes() const {
    return std::ranges::all_of(sequences,
                               [](const SequencePlan& s) { return s.target_tokens <= 1; });
  }
  int32_t TargetRows() const {
    int32_t rows = 0;
    for (const SequencePlan& s : sequences) rows += s.target_tokens + s.num_drafts;
    return rows;
  }
  void Clear() {
    sequences.clear();
    blocks.clear();
    copies.clear();
    mappings.clear();
    host_copies.clear();
  }
};

// Why a sequence cannot go on; the others of the step are untouched.
enum class StepFault : uint8_t {
  kNone,
  kNoTokenAllowed,  // the constraint leaves no token to draw
  kBadLogits,       // no token could be drawn from the model's logits
};

// The results of a step, in the plan's order.
struct SequenceResult {
  int32_t slot = 0;
  int32_t proposed = 0;  // drafts that were verified; at most num_drafts
  int32_t accepted = 0;  // of those, the number accepted
  // accepted + 1 tokens when the plan said `samples` and the sequence had not ended, else none.
  // None either if the mask of its constraint was not ready: the draw is put off to the next step.
  int32_t first_token = 0;  // index into StepResult::tokens
  int32_t num_tokens = 0;
  bool end_id = false;  // the last of these tokens is an end id: not part of the output
  // The lengths that each model has computed of the sequence after this step.
  ComputedLengths computed{0, 0};
  StepFault fault = StepFault::kNone;
  // Row of StepResult::kept where the logits begin that the plan said to keep: of the target's
  // range, then of the tokens after its last one. -1: none.
  int32_t first_kept = -1;
};

}  // namespace tandem
