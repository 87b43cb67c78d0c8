// Verifier: the target's half of a step. Run computes the logits of every planned row in one ragged
// pass; Sample draws from them and keeps drafts as long as they hold: while they equal the target's
// own draw (token match), or by the ratio rule. Owned and used by the executor.
#pragma once

#include <vector>

#include "runtime/execution/batch_builder.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/proposer.h"
#include "runtime/execution/row_masks.h"
#include "runtime/execution/slot_state.h"

namespace tandem {

class Verifier {
 public:
  // Everything outlives the verifier.
  Verifier(const ExecutorConfig& config, ops::Ops& ops, ForwardPass& target,
           const ops::KvPool& pool, SlotTable& slots, const Proposer& proposer,
           const CostMeter& meter);

  void Run(const BatchPlan& plan);
  // Emits tokens into the slots and `result`, in the plan's order.
  void Sample(const BatchPlan& plan, StepResult& result);

 private:
  // The rows of one sequence that are sampled: its last known token's, then its drafts'.
  struct Block {
    SlotState* slot = nullptr;
    int32_t logits = 0;     // first row of the pass
    int32_t num_rows = 0;   // 0: nothing is sampled
    int32_t first_row = 0;  // in rows_
  };
  void AddRows(Block& block);
  bool ByRatio(const Block& block) const;
  void MatchTokens(const Block& block, StepResult& result);
  void AcceptByRatio(const Block& block, StepResult& result);
  bool Emit(const Block& block, int32_t row, const ops::SampledToken& token, StepResult& result);
  void Finish(const SequencePlan& item, const Block& block, StepResult& result);
  std::span<ops::SampleRow> Rows(const Block& block);

  const ExecutorConfig config_;
  ops::Ops& ops_;
  ForwardPass& target_;
  const ops::KvPool pool_;
  SlotTable& slots_;
  const Proposer& proposer_;
  const CostMeter meter_;

  BatchBuilder builder_;
  RowMasks masks_;
  Tensor logits_;  // [num_logits, vocab] of the pass at hand
  Nanos started_{0};
  std::vector<Block> blocks_;             // one a sequence of the plan
  std::vector<ops::SampleRow> rows_;      // of all blocks
  std::vector<ops::SampledToken> drawn_;  // [max_logits_rows] of rows_
  std::vector<float> probs_;              // ratio mode: [max_draft_len + 1, vocab] of one sequence
};

}  // namespace tandem
