// ConstraintMasks: the token constraints of the executor's slots and the masks made from them, one
// bit for each token of the target's vocabulary: for the rows from which the target's tokens are
// drawn and, on the host, for the draws of drafts. Never waits for a device: the executor calls it
// when the drafts and results that it reads have reached the host. The masks of several sequences
// are filled by several threads, each sequence's by one.
//
// A step waits for masks only a short time (ExecutorConfig::mask_patience) while other sequences
// can go on, and longer, but not for ever, where nothing else can: a sequence whose mask is not
// ready by then draws nothing in that step, and its thread goes on. Owned by the executor; engine
// thread only.
//
// Of several ranks only the first has the constraints. It makes the masks, and every call gives all
// ranks what the first one's gave: the others wait for it and make none.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "ops/round.h"
#include "runtime/execution/device_memory.h"
#include "runtime/execution/executor_config.h"
#include "runtime/execution/mask_threads.h"
#include "runtime/request/request.h"
#include "runtime/scheduling/batch_plan.h"

namespace tandem {

class ConstraintMasks {
 public:
  // `round` outlives this object, and so does `ranks` (null: there is one).
  ConstraintMasks(const ExecutorConfig& config, const ops::Round& round,
                  Communicator* ranks = nullptr);

  // Whether the slot's sequence has a constraint, and which: null on ranks that follow.
  void Set(int32_t slot, bool constrained, std::shared_ptr<TokenConstraint> constraint);
  bool Constrains(int32_t slot) const { return constrained_[static_cast<size_t>(slot)] != 0; }

  // On the host: removes looked-up drafts that a constraint forbids, and those after them.
  void CutLookUps(const BatchPlan& plan);
  // On the host: where a constraint forces more tokens than were looked up, those are the drafts;
  // with a draft model only if they fill the round, because it would draft them too, and more.
  void DraftForced(const BatchPlan& plan);
  // On the host: the next drafts of constrained sequences are drawn under masks. If no token may
  // follow, or a mask is not ready, drafting stops before the draw.
  void MaskDrafts(const ops::PassBounds& bounds);
  // Fills the masks of the tokens that may follow those of every earlier step and then the drafts.
  // Returns how many masks lie from `masks.bits` on; each sequence has room for one of each row.
  int32_t FillTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                     const DeviceMemory::HostMasks& masks);
  // Tells the constraints which tokens a finished step of `items` items emitted.
  void Commit(const DeviceMemory::HostResults& results, int32_t items);

 private:
  // Masks of one sequence of a step.
  struct Asked {
    int32_t seq = 0;  // in the pass, or in the plan
    int32_t slot = 0;
    ops::ItemMasks* masks = nullptr;
    bool has_sent = false;  // drafts of the client, which a late mask would cut off
  };

  std::shared_ptr<MaskJob>& JobOf(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  std::span<const int32_t> DraftsOf(int32_t slot, const DeviceMemory::HostDrafts& drafts) const;
  std::span<const int32_t> FollowedDrafts(int32_t slot, const DeviceMemory::HostDrafts& drafts);
  DeviceMemory::HostDrafts InPlace() const { return {round_.slots.records, round_.slots.drafts}; }
  uint32_t* DraftMask(int32_t seq) { return draft_masks_.data() + int64_t{seq} * words(); }
  void AwaitBusy(bool others_move);
  void Make(bool others_move);
  bool follows() const { return ranks_ != nullptr && ranks_->rank() > 0; }
  template <typename T>
  void Share(std::span<T> values);
  void ShareDrafts(const BatchPlan& plan);
  void CutForbidden(const BatchPlan& plan);
  void TakeForced(const BatchPlan& plan);
  void MakeDraftMasks(const ops::PassBounds& bounds);
  void MakeTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                  const DeviceMemory::HostMasks& masks);
  int64_t words() const { return round_.mask_words; }
  size_t max_drafts() const { return static_cast<size_t>(round_.slots.max_draft_len); }

  const ops::Round& round_;
  Communicator* const ranks_;
  const Nanos patience_, long_patience_;
  const bool verifies_end_ids_;                  // of the engine's own drafts
  std::vector<char> constrained_;                // by slot
  std::vector<std::shared_ptr<MaskJob>> slots_;  // null: not constrained, or on another rank
  std::vector<std::shared_ptr<MaskJob>> left_;   // of no slot; a thread is, or was, at them
  std::vector<uint32_t> draft_masks_;  // on the host: [max_batch_size, mask_words] of a draft pass
  std::vector<ops::ItemMasks> draft_items_;     // likewise
  std::vector<int32_t> shared_;                 // scratch of ShareDrafts
  std::vector<Asked> asked_;                    // what is being made
  std::vector<std::shared_ptr<MaskJob>> jobs_;  // of asked_
  std::unique_ptr<MaskThreads> threads_;        // null before the first constrained sequence
};

}  // namespace tandem
