// SlotTable: what the executor keeps of every running sequence: its tokens, what each model has
// computed of them, its block table and its sampling record. On a GPU this lies on the device; the
// host side of the engine never reads it. Owned and used by the executor; Remove and Append
// allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling.h"
#include "runtime/execution/executor.h"

namespace tandem {

struct SlotState {
  bool ended = true;          // emitted an end id, reached its longest length, or empty
  std::span<int32_t> tokens;  // [max_seq_len]: prompt, then output
  int32_t known = 0;          // of those
  int32_t prompt_tokens = 0;
  int32_t max_length = 0;
  ComputedLengths computed{0, 0};
  std::span<BlockId> blocks;  // [max_blocks]
  int32_t num_blocks = 0;

  ops::SlotSampling sampling;        // what the target's rows are drawn with
  ops::SlotSampling draft_sampling;  // the same without log-probabilities
  std::vector<int32_t> end_ids, bias_ids, ban_tokens, ban_ends;
  std::vector<float> bias_values;
  std::vector<int32_t> counts;  // [vocab]; empty until a sequence with penalties takes the slot
  bool counted = false;
  TokenConstraint* constraint = nullptr;

  // Of the round at hand: drafts behind the known tokens, how far the draft model's cache reaches
  // with them, and (ratio mode) where their distributions stand.
  std::span<int32_t> drafts;  // [max_draft_len]
  int32_t num_drafts = 0;
  int32_t draft_reach = 0;
  int32_t first_prob_row = 0;
  StepFault fault = StepFault::kNone;

  std::span<const int32_t> Known() const { return tokens.first(static_cast<size_t>(known)); }
  std::span<const int32_t> Drafts() const { return drafts.first(static_cast<size_t>(num_drafts)); }
  bool IsEnd(int32_t token) const;
  ops::SlotHistory History();
};

class SlotTable {
 public:
  struct Limits {
    int32_t max_slots = 0;
    int32_t max_seq_len = 0;
    int32_t max_blocks = 0;  // of one sequence
    int32_t max_draft_len = 0;
    int64_t vocab_size = 0;
  };
  explicit SlotTable(const Limits& limits);

  SlotState& operator[](int32_t index) { return slots_[static_cast<size_t>(index)]; }
  void Add(int32_t index, const SlotInit& init);
  void Remove(int32_t index);
  void AddBlocks(int32_t index, std::span<const BlockId> blocks);
  // Puts an emitted token behind the known ones; marks the end.
  void Append(SlotState& slot, int32_t token);

 private:
  void FillSampling(SlotState& slot, const SlotInit& init);

  const Limits limits_;
  std::vector<int32_t> tokens_;  // [max_slots, max_seq_len]
  std::vector<BlockId> blocks_;  // [max_slots, max_blocks]
  std::vector<int32_t> drafts_;  // [max_slots, max_draft_len]
  std::vector<SlotState> slots_;
};

}  // namespace tandem
