// Proposer: the drafts of a round. First from the sequence's own history, where the option says so,
// else from the draft model: one pass over what it has yet to compute of every drafting sequence,
// then one row a sequence until each has its drafts. Each draft is drawn as the target would draw
// it, with the same filters, masks, history and noise. Owned and used by the executor.
#pragma once

#include <vector>

#include "runtime/execution/batch_builder.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/row_masks.h"
#include "runtime/execution/slot_state.h"

namespace tandem {

class Proposer {
 public:
  // `draft` may be null. Everything outlives the proposer.
  Proposer(const ExecutorConfig& config, ops::Ops& ops, ForwardPass* draft, const ops::KvPool& pool,
           int64_t target_vocab, SlotTable& slots, const CostMeter& meter);

  // Fills drafts, num_drafts and draft_reach of the slots in the plan, and runs catch-ups.
  void Propose(const BatchPlan& plan);
  // Ratio mode: the distributions a slot's drafts were drawn from, [num_drafts, target vocab].
  const float* Probs(const SlotState& slot) const;

 private:
  struct Drafting {
    SlotState* slot = nullptr;
    int32_t wanted = 0;  // drafts
    int32_t logits = 0;  // row of the pass at hand
  };
  void Prepare(const SequencePlan& item);
  bool LookUp(SlotState& slot, int32_t wanted);
  void AddDraftRange(SlotState& slot, const SequencePlan& item, int32_t wanted);
  void RunPass();
  void DrawFrom(const Tensor& logits);
  bool KeepDraft(Drafting& drafting, int32_t token) const;
  void AddNextRows();
  float* ProbRow(const SlotState& slot, int32_t draft);

  const ExecutorConfig config_;
  ops::Ops& ops_;
  ForwardPass* const draft_;
  const ops::KvPool pool_;
  const int64_t target_vocab_;
  const int64_t draw_vocab_;  // tokens both models know
  SlotTable& slots_;
  const CostMeter meter_;

  BatchBuilder builder_;
  RowMasks masks_;
  std::vector<Drafting> drafting_;        // those that want more drafts
  std::vector<ops::SampleRow> rows_;      // of drafting_
  std::vector<ops::SampledToken> drawn_;  // of rows_
  std::vector<float> probs_;              // ratio mode: [max draft rows, target vocab]
  int32_t prob_rows_ = 0;
};

}  // namespace tandem
