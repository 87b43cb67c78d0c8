// DeviceMemory: the arrays of a RoundExecutor: the slots' state, the step's plan, the rows of both
// models' passes and the results, in backend memory; and the pinned host memory that steps copy
// from and to, one piece for each step that may be in flight. Made once, for the largest step.
// Owned by the executor.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "ops/round.h"
#include "runtime/execution/executor.h"
#include "runtime/execution/executor_config.h"
#include "runtime/request/validate_request.h"

namespace tandem {

class DeviceMemory {
 public:
  // draft_vocab: 0 without a draft model. window_of: the target pool's, or null.
  static Result<std::unique_ptr<DeviceMemory>> Create(const ExecutorConfig& config,
                                                      int64_t target_vocab, int64_t draft_vocab,
                                                      int32_t* window_of, ops::Backend& backend);
  // Bytes of the backend's memory that Create takes, for the memory plan.
  static int64_t Bytes(const ExecutorConfig& config, int64_t target_vocab, int64_t draft_vocab);

  int64_t pinned_bytes() const;
  const ops::Round& round() const { return round_; }
  // Size of a slot's longest patch, with its tokens and lists.
  size_t patch_bytes() const { return patch_bytes_; }
  std::byte* patch() const { return patch_; }
  // Room for a request's lists, [kMaxListValues].
  int32_t* Lists(int32_t slot) const { return lists_ + int64_t{slot} * kMaxListValues; }

  // A plan travels in one copy, from its pinned twin to the device; unused block entries at the end
  // are left out. The mappings of window blocks, a block and its window block each, are the last of
  // them.
  struct HostPlan {
    ops::RoundHeader* header = nullptr;
    ops::RoundItem* items = nullptr;
    int32_t* blocks = nullptr;
  };
  HostPlan PlanOf(uint64_t step) const;
  void EnqueuePlan(uint64_t step, size_t num_blocks);

  // The slots' records and drafts, copied once the drafts are known: masks are made from them.
  struct HostDrafts {
    const ops::SlotRecord* records = nullptr;
    const int32_t* drafts = nullptr;  // [max_slots, max_draft_len]
  };
  HostDrafts DraftsOf(uint64_t step) const;
  void EnqueueDrafts(uint64_t step);

  // Masks of the constrained items: which rows are an item's, and [row, words] bits.
  struct HostMasks {
    ops::ItemMasks* items = nullptr;
    uint32_t* bits = nullptr;
  };
  HostMasks MasksOf(uint64_t step) const;
  void EnqueueMasks(uint64_t step, int32_t num_rows);

  struct HostResults {
    const ops::RoundStatus* status = nullptr;
    const ops::RoundResult* results = nullptr;
    const SampledToken* drawn = nullptr;
  };
  HostResults ResultsOf(uint64_t step) const;
  void EnqueueResults(uint64_t step, int32_t num_logits);

  // Logits for clients, [max_logits_rows, vocab], which the device writes to the host's memory;
  // none unless ExecutorConfig::takes_logits.
  float* KeptOf(uint64_t step) const { return HostOf(step).kept.As<float>(); }
  // Logits that clients sent with their drafts, [MaxSentRows(), vocab], which the device reads in
  // the host's memory.
  float* SentOf(uint64_t step) const { return HostOf(step).sent.As<float>(); }

 private:
  // Divides one allocation into pieces; without memory it only counts bytes.
  class Layout;
  // `backend`: null to count bytes.
  DeviceMemory(const ExecutorConfig& config, ops::Backend* backend)
      : config_(config), backend_(backend) {}
  void LaySlots(Layout& layout, int64_t vocab);
  void LayPass(Layout& layout, ops::PassArrays& pass, ModelIndex model, int64_t vocab,
               int64_t max_logits) const;
  void LayOut(Layout& layout, int64_t target_vocab, int64_t draft_vocab);
  Status AllocatePinned();

  const ExecutorConfig config_;
  ops::Backend* const backend_;
  ops::Round round_;
  size_t patch_bytes_ = 0;
  std::byte* patch_ = nullptr;
  int32_t* lists_ = nullptr;  // [max_slots, kMaxListValues]
  // Pieces that are copied as a whole.
  std::byte* plan_ = nullptr;     // header, items, blocks
  std::byte* drafts_ = nullptr;   // records, drafts
  std::byte* masks_ = nullptr;    // items, bits
  std::byte* results_ = nullptr;  // status, results, drawn tokens
  size_t plan_bytes_ = 0;
  size_t drafts_bytes_ = 0;
  size_t masks_bytes_ = 0;
  size_t results_bytes_ = 0;
  Buffer memory_;
  // One piece for each step that may be launched at once, used in turn.
  struct HostPieces {
    Buffer plan, drafts, masks, results, kept, sent;
  };
  std::vector<HostPieces> host_;
  const HostPieces& HostOf(uint64_t step) const { return host_[step % host_.size()]; }
};

}  // namespace tandem
