// ConstraintMasks: the token constraints of the executor's slots and the masks made from them, one
// bit for each token of the target's vocabulary: for the rows from which the target's tokens are
// drawn and, on the host, for the draws of drafts. Never waits: the executor calls it when the
// drafts and results that it reads have reached the host. The masks of several sequences are filled
// by several threads, each sequence's by one. Owned by the executor; engine thread only. Nothing
// here allocates after the first constrained sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/round.h"
#include "runtime/execution/device_memory.h"
#include "runtime/execution/executor_config.h"
#include "runtime/request/request.h"
#include "runtime/scheduling/batch_plan.h"

namespace tandem {

class ConstraintMasks {
 public:
  // `round` outlives this object.
  ConstraintMasks(const ExecutorConfig& config, const ops::Round& round);

  // Null: the slot's sequence has no constraint, or the slot is free.
  void Set(int32_t slot, TokenConstraint* constraint);
  bool Constrains(int32_t slot) const { return constraints_[static_cast<size_t>(slot)] != nullptr; }

  // On the host: removes looked-up drafts that a constraint forbids, and those after them.
  void CutLookUps(const BatchPlan& plan);
  // On the host: the next drafts of constrained sequences are drawn under masks. If no token may
  // follow, drafting stops before the draw.
  void MaskDrafts(const ops::PassBounds& bounds);
  // Fills the masks of the tokens that may follow those of every earlier step and then the drafts.
  // Returns how many masks lie from `masks.bits` on; each sequence has room for one of each row.
  int32_t FillTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                     const DeviceMemory::HostMasks& masks);
  // Tells the constraints which tokens a finished step of `items` items emitted.
  void Commit(const DeviceMemory::HostResults& results, int32_t items);

 private:
  struct Job {
    int32_t slot;
    ops::ItemMasks* masks;  // `first` is set
  };

  TokenConstraint*& At(int32_t slot) { return constraints_[static_cast<size_t>(slot)]; }
  std::span<const int32_t> DraftsOf(int32_t slot, const DeviceMemory::HostDrafts& drafts) const;
  DeviceMemory::HostDrafts InPlace() const { return {round_.slots.records, round_.slots.drafts}; }
  std::span<uint32_t> DraftMask(int32_t seq);
  // Calls fill(i) for each i below `count`, on several threads.
  template <typename Fn>
  void ForEach(size_t count, Fn&& fill);
  bool FillMask(int32_t slot, std::span<const int32_t> ahead, std::span<uint32_t> mask);
  void FillItem(const Job& job, const DeviceMemory::HostDrafts& host, uint32_t* bits);
  size_t words() const { return static_cast<size_t>(round_.mask_words); }

  const ops::Round& round_;
  const bool verifies_end_ids_;                // of the engine's own drafts
  std::vector<TokenConstraint*> constraints_;  // by slot
  std::vector<uint32_t> draft_masks_;  // on the host: [max_batch_size, mask_words] of a draft pass
  std::vector<Job> jobs_;              // of the step whose masks are filled
  std::vector<int32_t> seqs_;          // constrained ones of a draft pass
  std::unique_ptr<ThreadPool> pool_;   // null before the first constrained sequence
};

}  // namespace tandem
