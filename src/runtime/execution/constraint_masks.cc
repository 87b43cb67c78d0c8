#include "runtime/execution/constraint_masks.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "ops/round_rules.h"

namespace tandem {

ConstraintMasks::ConstraintMasks(const ExecutorConfig& config, const ops::Round& round,
                                 Communicator* ranks)
    : round_(round),
      ranks_(ranks),
      patience_(config.mask_patience),
      long_patience_(config.long_mask_patience),
      verifies_end_ids_(config.ratio_acceptance && config.on_host),
      constrained_(static_cast<size_t>(config.max_batch_size)),
      slots_(constrained_.size()) {
  if (config.on_host) {
    draft_masks_.resize(slots_.size() * static_cast<size_t>(words()));
    draft_items_.resize(slots_.size());
  }
  asked_.reserve(slots_.size());
  jobs_.reserve(slots_.size());
  if (ranks_ != nullptr) shared_.reserve(slots_.size() * (1 + max_drafts()));
}

void ConstraintMasks::Set(int32_t slot, bool constrained,
                          std::shared_ptr<TokenConstraint> constraint) {
  constrained_[static_cast<size_t>(slot)] = constrained ? 1 : 0;
  std::shared_ptr<MaskJob>& job = JobOf(slot);
  std::erase_if(left_, [](const auto& left) { return !left->busy(); });
  if (job != nullptr) {
    job->Leave();
    if (job->busy()) left_.push_back(job);
    job = nullptr;
  }
  if (constraint == nullptr) return;
  if (threads_ == nullptr) threads_ = std::make_unique<MaskThreads>(slots_.size());
  // A paused sequence comes back with the constraint that a thread may still be at.
  const auto found =
      std::ranges::find_if(left_, [&](const auto& left) { return left->Return(constraint.get()); });
  if (found != left_.end()) {
    job = std::move(*found);
    left_.erase(found);
  } else {
    job = std::make_shared<MaskJob>(std::move(constraint), round_.slots.vocab,
                                    round_.slots.max_draft_len);
  }
}

std::span<const int32_t> ConstraintMasks::DraftsOf(int32_t slot,
                                                   const DeviceMemory::HostDrafts& drafts) const {
  return {drafts.drafts + int64_t{slot} * round_.slots.max_draft_len,
          static_cast<size_t>(drafts.records[slot].num_drafts)};
}

// The drafts that masks are needed after. Only the ratio rule verifies end ids, and under
// constraints only on the host. Of a sequence that is late only the first row is drawn.
std::span<const int32_t> ConstraintMasks::FollowedDrafts(int32_t slot,
                                                         const DeviceMemory::HostDrafts& host) {
  const std::span<const int32_t> drafts = DraftsOf(slot, host);
  if (JobOf(slot)->was_late()) return drafts.first(0);
  if (!verifies_end_ids_) return drafts;
  const auto end = std::ranges::find_if(
      drafts, [&](int32_t token) { return ops::rules::IsEnd(round_.slots.sampling[slot], token); });
  return drafts.first(static_cast<size_t>(end - drafts.begin()));
}

// Makes the masks of jobs_, which have their orders. Marks those in asked_ that are not complete.
void ConstraintMasks::Make(bool others_move) {
  if (jobs_.empty()) return;
  threads_->Start(jobs_);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (asked_[i].has_sent) threads_->WaitForAll(std::span(jobs_).subspan(i, 1), long_patience_);
  }
  if (!others_move) threads_->WaitForOne(jobs_, long_patience_);
  threads_->WaitForAll(jobs_, patience_);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (!jobs_[i]->Close()) asked_[i].masks->late = 1;
  }
  jobs_.clear();  // a job is its slot's and its thread's
}

// All ranks get the first one's values.
template <typename T>
void ConstraintMasks::Share(std::span<T> values) {
  if (ranks_ != nullptr) ranks_->Broadcast(std::as_writable_bytes(values));
}

// ---- On the host ----

// The drafts of constrained sequences that the first rank has chosen.
void ConstraintMasks::ShareDrafts(const BatchPlan& plan) {
  if (ranks_ == nullptr) return;
  const auto for_each = [&](const auto& use) {
    for (const SequencePlan& item : plan.sequences) {
      if (!Constrains(item.slot) || item.sent) continue;
      use(round_.slots.records[item.slot].num_drafts);
      int32_t* const drafts = round_.slots.drafts + static_cast<size_t>(item.slot) * max_drafts();
      for (size_t i = 0; i < max_drafts(); ++i) use(drafts[i]);
    }
  };
  shared_.clear();
  for_each([this](int32_t value) { shared_.push_back(value); });
  Share(std::span(shared_));
  auto next = shared_.begin();
  for_each([&next](int32_t& value) { value = *next++; });
}

void ConstraintMasks::CutLookUps(const BatchPlan& plan) {
  if (!follows()) CutForbidden(plan);
  ShareDrafts(plan);
}

void ConstraintMasks::DraftForced(const BatchPlan& plan) {
  if (!follows()) TakeForced(plan);
  ShareDrafts(plan);
}

void ConstraintMasks::CutForbidden(const BatchPlan& plan) {
  asked_.clear();
  jobs_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& item = plan.sequences[i];
    if (!Constrains(item.slot) || item.sent) continue;
    const std::shared_ptr<MaskJob>& job = JobOf(item.slot);
    const std::span<const int32_t> drafts = DraftsOf(item.slot, InPlace());
    if (drafts.empty()) continue;
    if (job->busy() || job->was_late()) {
      round_.slots.records[item.slot].num_drafts = 0;
      continue;
    }
    const auto seq = static_cast<int32_t>(i);
    draft_items_[i] = {};
    // All masks to one place: only their number matters.
    job->Ask({.ahead = drafts, .masks = &draft_items_[i], .bits = DraftMask(seq)});
    asked_.push_back({.seq = seq, .slot = item.slot, .masks = &draft_items_[i]});
    jobs_.push_back(job);
  }
  Make(/*others_move=*/true);
  for (const Asked& asked : asked_) {
    // The last mask forbids its draft, or has none after it; without a token there is no mask.
    const ops::ItemMasks& masks = *asked.masks;
    const int32_t kept = masks.dead_end != 0 ? masks.count : masks.count - 1;
    round_.slots.records[asked.slot].num_drafts = std::max(kept, 0);
  }
}

void ConstraintMasks::TakeForced(const BatchPlan& plan) {
  asked_.clear();
  jobs_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& item = plan.sequences[i];
    if (!Constrains(item.slot) || item.sent || item.num_drafts == 0) continue;
    const std::shared_ptr<MaskJob>& job = JobOf(item.slot);
    const bool has_ended = round_.slots.records[item.slot].ended != 0;
    if (has_ended || job->busy() || job->was_late()) continue;
    draft_items_[i] = {};
    job->AskForced();
    asked_.push_back(
        {.seq = static_cast<int32_t>(i), .slot = item.slot, .masks = &draft_items_[i]});
    jobs_.push_back(job);
  }
  Make(/*others_move=*/true);
  for (const Asked& asked : asked_) {
    if (asked.masks->late != 0) continue;
    ops::SlotRecord& record = round_.slots.records[asked.slot];
    const int32_t wanted = ops::rules::DraftsWanted(record, round_.items[asked.seq]);
    const std::span<const int32_t> forced = JobOf(asked.slot)->forced();
    const auto count = std::min(static_cast<int32_t>(forced.size()), wanted);
    const bool has_model = round_.draft.vocab > 0;
    if (count <= record.num_drafts || (has_model && count < wanted)) continue;
    record.num_drafts = count;
    std::ranges::copy(forced.first(static_cast<size_t>(count)),
                      round_.slots.drafts + int64_t{asked.slot} * round_.slots.max_draft_len);
  }
}

void ConstraintMasks::MaskDrafts(const ops::PassBounds& bounds) {
  const auto num_seqs = static_cast<size_t>(bounds.num_seqs);
  std::ranges::fill(draft_items_ | std::views::take(num_seqs), ops::ItemMasks{});
  if (!follows()) MakeDraftMasks(bounds);
  Share(std::span(draft_items_).first(num_seqs));
  Share(std::span(draft_masks_).first(num_seqs * static_cast<size_t>(words())));
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    ops::RowRange& range = round_.draft.ranges[seq];
    if (range.num_logits == 0 || !Constrains(range.slot)) continue;
    ops::SampleRow& sample = round_.draft.samples[range.first_logits];
    if (draft_items_[static_cast<size_t>(seq)].count > 0) {
      sample.allowed = DraftMask(seq);
    } else {
      sample = {};
      range.num_logits = 0;
    }
  }
}

// None for a sequence whose mask is not ready.
void ConstraintMasks::MakeDraftMasks(const ops::PassBounds& bounds) {
  asked_.clear();
  jobs_.clear();
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const ops::RowRange& range = round_.draft.ranges[seq];
    if (range.num_logits == 0 || !Constrains(range.slot)) continue;
    const std::shared_ptr<MaskJob>& job = JobOf(range.slot);
    if (job->busy() || job->was_late()) continue;
    const std::span<const int32_t> drafts = DraftsOf(range.slot, InPlace());
    ops::ItemMasks& masks = draft_items_[static_cast<size_t>(seq)];
    job->Ask({.ahead = drafts, .from = drafts.size(), .masks = &masks, .bits = DraftMask(seq)});
    asked_.push_back({.seq = seq, .slot = range.slot, .masks = &masks});
    jobs_.push_back(job);
  }
  Make(/*others_move=*/true);
}

// ---- The target's rows ----

int32_t ConstraintMasks::FillTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                                    const DeviceMemory::HostMasks& masks) {
  int32_t count = 0;
  asked_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& item = plan.sequences[i];
    if (!Constrains(item.slot) || !item.samples) continue;
    masks.items[i] = {.first = count};
    if (drafts.records[item.slot].ended != 0) continue;
    asked_.push_back({.seq = static_cast<int32_t>(i),
                      .slot = item.slot,
                      .masks = &masks.items[i],
                      .has_sent = item.sent});
    count += static_cast<int32_t>(DraftsOf(item.slot, drafts).size()) + 1;
  }
  if (!follows()) MakeTarget(plan, drafts, masks);
  Share(std::span(masks.items, plan.sequences.size()));
  Share(std::span(masks.bits, static_cast<size_t>(count * words())));
  return count;
}

// Makes the masks of asked_.
void ConstraintMasks::MakeTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                                 const DeviceMemory::HostMasks& masks) {
  // Without a mask: prompts, and sequences without a constraint.
  const bool others_move = asked_.size() < plan.sequences.size();
  jobs_.clear();
  AwaitBusy(others_move);
  for (const Asked& asked : asked_) {
    const std::shared_ptr<MaskJob>& job = JobOf(asked.slot);
    if (job->was_late()) asked.masks->late = 1;  // only its first row is drawn
    job->Ask({.ahead = FollowedDrafts(asked.slot, drafts),
              .masks = asked.masks,
              .bits = masks.bits + asked.masks->first * words(),
              .stride = words()});
    jobs_.push_back(job);
  }
  Make(others_move);
}

// Takes those out of asked_ whose threads are still at what an earlier step asked. If nothing else
// moves, waits for one of them.
void ConstraintMasks::AwaitBusy(bool others_move) {
  const auto is_busy = [this](const Asked& asked) { return JobOf(asked.slot)->busy(); };
  if (!others_move && std::ranges::all_of(asked_, is_busy)) {
    for (const Asked& asked : asked_) jobs_.push_back(JobOf(asked.slot));
    threads_->WaitForOne(jobs_, long_patience_);
    jobs_.clear();
  }
  for (const Asked& asked : asked_) {
    if (!is_busy(asked)) continue;
    if (asked.has_sent) threads_->WaitForAll({&JobOf(asked.slot), 1}, long_patience_);
    asked.masks->late = is_busy(asked) ? 1 : 0;
  }
  std::erase_if(asked_, [](const Asked& asked) { return asked.masks->late != 0; });
}

void ConstraintMasks::Commit(const DeviceMemory::HostResults& results, int32_t items) {
  for (int32_t i = 0; i < items; ++i) {
    const ops::RoundResult& result = results.results[i];
    if (!Constrains(result.slot) || follows()) continue;
    // An end id is not part of the output, so the constraint does not get it either.
    for (int32_t t = 0; t < result.num_tokens - result.end_id; ++t) {
      JobOf(result.slot)->Commit(results.drawn[result.first_token + t].token);
    }
  }
}

}  // namespace tandem
