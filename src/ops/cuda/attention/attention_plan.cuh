// AttentionPlans: which keys of which sequence each block of the kernels that cut keys takes. The
// lengths are on the device, so a plan is made there, by a small kernel, and a captured graph
// serves any lengths. All layers of a pass have the same lengths: the first that needs a plan
// enqueues its kernel, the others use what it left. Owned by AttentionRunner; used by its thread.
// Owns the memory of the plans, made once; nothing here waits.
#pragma once

#include <array>
#include <optional>

#include "ops/cuda/attention/attention_params.cuh"
#include "ops/cuda/device/context.cuh"
#include "ops/ops.h"
#include "tensor/buffer.h"

namespace tandem::ops::cuda {

// How the keys of short sequences are to be cut, whatever their lengths are. For one kv head.
struct CutRule {
  // The sequences with more than above_rows rows and at most short_rows.
  int32_t above_rows = 0;
  int32_t short_rows = 0;
  // Chunks have chunk_keys keys where that is not 0, and all have slots. Else each is an item, and
  // the sequences of one chunk need no slot. All keys are cut into at most resident_chunks, which
  // run at a time; where the sequences are too unequal for that, into about target_chunks, which
  // are no fewer.
  int32_t chunk_keys = 0;
  int32_t resident_chunks = 0;
  int32_t target_chunks = 1;
  int32_t item_chunks = 1;  // at most, of one sequence
  int32_t max_items = 0;    // there are no more, whatever the lengths are
  int32_t blocks = 0;       // that take the items in turn
  int32_t num_counters = 0;
  SeenKeys seen;  // keys that no row of a sequence sees are not cut
  friend bool operator==(const CutRule&, const CutRule&) = default;
};

// In the device's memory.
struct AttentionPlan {
  AttentionItem* items = nullptr;  // [max_items]; valid up to the first without a sequence that
                                   // each block meets
  uint32_t* counters = nullptr;    // [num_counters], zeros
  bool is_new = true;              // no launch has used it yet
};

class AttentionPlans {
 public:
  explicit AttentionPlans(const Context& context);

  // As Ops::BeginPass and EndPass. Outside a pass every Get enqueues a plan.
  void BeginPass(const BatchView& batch);
  void EndPass();

  // The plan of the batch by the rule, ready for the launches that are enqueued from now on until
  // the pass ends, or until the next Get outside a pass; none: there is no room for it. The
  // launches of a pass take turns with the counters of its plans: each leaves them as zeros.
  std::optional<AttentionPlan> Get(const CutRule& rule, const BatchView& batch);

 private:
  struct Made {
    CutRule rule;
    AttentionPlan plan;
  };
  void Forget();
  bool IsOfPass(const BatchView& batch) const;

  const Context context_;
  const Buffer memory_;
  // Whose lengths the plans are of. A null query_start: none, there is no pass.
  BatchView pass_;
  // One for each rule: models have a few shapes of attention, and a batch at most two launches.
  std::array<Made, 8> made_;
  size_t num_made_ = 0;
  bool made_in_pass_ = false;  // for the pass's batch, not for a call with another
  size_t used_bytes_ = 0;
};

}  // namespace tandem::ops::cuda
