#include "runtime/execution/constraint_masks.h"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "ops/round_rules.h"
#include "ops/sample_rules.h"

namespace tandem {
namespace {

// A grammar's mask for 131,072 tokens takes some 20 us, at times a hundred times as long.
constexpr unsigned kMaxThreads = 8;

std::unique_ptr<ThreadPool> MakePool() {
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1u);
  try {
    return std::make_unique<ThreadPool>(static_cast<int>(std::min(cores, kMaxThreads)),
                                        /*pin=*/false);
  } catch (const std::system_error&) {
    return std::make_unique<ThreadPool>(1);  // the caller alone
  }
}

}  // namespace

ConstraintMasks::ConstraintMasks(const ExecutorConfig& config, const ops::Round& round)
    : round_(round),
      verifies_end_ids_(config.ratio_acceptance && config.on_host),
      constraints_(static_cast<size_t>(config.max_batch_size)) {
  if (config.on_host) draft_masks_.resize(constraints_.size() * words());
  jobs_.reserve(constraints_.size());
  seqs_.reserve(constraints_.size());
}

void ConstraintMasks::Set(int32_t slot, TokenConstraint* constraint) {
  At(slot) = constraint;
  if (constraint != nullptr && pool_ == nullptr) pool_ = MakePool();
}

std::span<const int32_t> ConstraintMasks::DraftsOf(int32_t slot,
                                                   const DeviceMemory::HostDrafts& drafts) const {
  return {drafts.drafts + int64_t{slot} * round_.slots.max_draft_len,
          static_cast<size_t>(drafts.records[slot].num_drafts)};
}

std::span<uint32_t> ConstraintMasks::DraftMask(int32_t seq) {
  return std::span(draft_masks_).subspan(static_cast<size_t>(seq) * words(), words());
}

template <typename Fn>
void ConstraintMasks::ForEach(size_t count, Fn&& fill) {
  if (count < 2) {
    if (count == 1) fill(0);
    return;
  }
  std::atomic<size_t> next = 0;
  pool_->Run([&](int) {
    for (size_t i = next++; i < count; i = next++) fill(i);
  });
}

// The tokens that may follow the committed tokens and then `ahead`; false if no token may.
bool ConstraintMasks::FillMask(int32_t slot, std::span<const int32_t> ahead,
                               std::span<uint32_t> mask) {
  std::ranges::fill(mask, ~0u);
  At(slot)->FillMask(ahead, mask);
  // The bits past the end of the vocabulary belong to no token.
  const auto in_last_word = static_cast<uint32_t>(round_.slots.vocab % 32);
  if (in_last_word != 0) mask.back() &= (1u << in_last_word) - 1;
  return std::ranges::any_of(mask, [](uint32_t word) { return word != 0; });
}

// ---- On the host ----

void ConstraintMasks::CutLookUps(const BatchPlan& plan) {
  const std::span<uint32_t> mask = DraftMask(0);
  for (const SequencePlan& item : plan.sequences) {
    if (!Constrains(item.slot)) continue;
    const std::span<const int32_t> drafts = DraftsOf(item.slot, InPlace());
    size_t kept = 0;
    while (kept < drafts.size() && FillMask(item.slot, drafts.first(kept), mask) &&
           ops::IsAllowed(mask.data(), drafts[kept])) {
      ++kept;
    }
    round_.slots.records[item.slot].num_drafts = static_cast<int32_t>(kept);
  }
}

void ConstraintMasks::MaskDrafts(const ops::PassBounds& bounds) {
  seqs_.clear();
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const ops::RowRange& range = round_.draft.ranges[seq];
    if (range.num_logits != 0 && Constrains(range.slot)) seqs_.push_back(seq);
  }
  ForEach(seqs_.size(), [this](size_t i) {
    const int32_t seq = seqs_[i];
    ops::RowRange& range = round_.draft.ranges[seq];
    const std::span<uint32_t> mask = DraftMask(seq);
    ops::SampleRow& row = round_.draft.samples[range.first_logits];
    if (FillMask(range.slot, DraftsOf(range.slot, InPlace()), mask)) {
      row.allowed = mask.data();
    } else {
      row = {};
      range.num_logits = 0;
    }
  });
}

// ---- The target's rows ----

int32_t ConstraintMasks::FillTarget(const BatchPlan& plan, const DeviceMemory::HostDrafts& drafts,
                                    const DeviceMemory::HostMasks& masks) {
  int32_t count = 0;
  jobs_.clear();
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const SequencePlan& item = plan.sequences[i];
    if (!Constrains(item.slot) || !item.samples) continue;
    masks.items[i] = {.first = count};
    if (drafts.records[item.slot].ended != 0) continue;
    jobs_.push_back({.slot = item.slot, .masks = &masks.items[i]});
    count += static_cast<int32_t>(DraftsOf(item.slot, drafts).size()) + 1;
  }
  ForEach(jobs_.size(), [&](size_t i) { FillItem(jobs_[i], drafts, masks.bits); });
  return count;
}

void ConstraintMasks::FillItem(const Job& job, const DeviceMemory::HostDrafts& host,
                               uint32_t* bits) {
  ops::ItemMasks& masks = *job.masks;
  const std::span<const int32_t> drafts = DraftsOf(job.slot, host);
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const std::span mask(bits + int64_t{masks.first + masks.count} * round_.mask_words, words());
    if (!FillMask(job.slot, drafts.first(i), mask)) {
      masks.dead_end = 1;
      return;
    }
    ++masks.count;
    if (i == drafts.size() || !ops::IsAllowed(mask.data(), drafts[i])) return;
    // Only the ratio rule verifies end ids, and under constraints only on the host.
    if (verifies_end_ids_ && ops::rules::IsEnd(round_.slots.sampling[job.slot], drafts[i])) return;
  }
}

void ConstraintMasks::Commit(const DeviceMemory::HostResults& results, int32_t items) {
  for (int32_t i = 0; i < items; ++i) {
    const ops::RoundResult& result = results.results[i];
    if (!Constrains(result.slot)) continue;
    // An end id is not part of the output, so the constraint does not get it either.
    for (int32_t t = 0; t < result.num_tokens - result.end_id; ++t) {
      const int32_t token = results.drawn[result.first_token + t].token;
      At(result.slot)->Commit(&token, 1);
    }
  }
}

}  // namespace tandem
