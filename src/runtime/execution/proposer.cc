#include "runtime/execution/proposer.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

int64_t DrawVocab(const ForwardPass* draft, int64_t target_vocab) {
  return draft == nullptr ? target_vocab : std::min(draft->vocab_size(), target_vocab);
}

}  // namespace

Proposer::Proposer(const ExecutorConfig& config, ops::Ops& ops, ForwardPass* draft,
                   const ops::KvPool& pool, int64_t target_vocab, SlotTable& slots,
                   const CostMeter& meter)
    : config_(config),
      ops_(ops),
      draft_(draft),
      pool_(pool),
      target_vocab_(target_vocab),
      draw_vocab_(DrawVocab(draft, target_vocab)),
      slots_(slots),
      meter_(meter),
      builder_(config.max_num_tokens, config.max_batch_size, config.max_batch_size,
               config.MaxBlocks(), draw_vocab_),
      // A looked-up draft is checked against a mask of its own.
      masks_(std::max(config.max_batch_size, config.max_draft_len), target_vocab),
      drawn_(static_cast<size_t>(config.max_batch_size)) {
  drafting_.reserve(static_cast<size_t>(config.max_batch_size));
  rows_.reserve(static_cast<size_t>(config.max_batch_size));
  if (config.ratio_acceptance) {
    probs_.resize(static_cast<size_t>(config.max_logits_rows) * static_cast<size_t>(target_vocab));
  }
}

void Proposer::Propose(const BatchPlan& plan) {
  builder_.Clear();
  drafting_.clear();
  prob_rows_ = 0;
  for (const SequencePlan& item : plan.sequences) Prepare(item);
  while (!builder_.empty()) {
    RunPass();
    AddNextRows();
  }
}

void Proposer::Prepare(const SequencePlan& item) {
  SlotState& slot = slots_[item.slot];
  slot.num_drafts = 0;
  slot.draft_reach = slot.computed[1];
  if (slot.ended) return;
  // The plan knows the length as an interval; here it is exact, and the last token needs no draft.
  const int32_t wanted = std::clamp(slot.max_length - slot.known - 1, 0, item.num_drafts);
  slot.first_prob_row = prob_rows_;
  if (config_.ratio_acceptance) prob_rows_ += wanted;
  if (wanted > 0 && LookUp(slot, wanted)) return;
  if (draft_ != nullptr) AddDraftRange(slot, item, wanted);
}

bool Proposer::LookUp(SlotState& slot, int32_t wanted) {
  const std::span<int32_t> room = slot.drafts.first(static_cast<size_t>(wanted));
  const int32_t found = LookupDrafts(slot.Known(), config_.lookup_ngram, room);
  masks_.Clear();
  for (int32_t i = 0; i < found; ++i) {
    const int32_t token = room[static_cast<size_t>(i)];
    // Behind an end nothing can hold, and a constraint is never asked about what it forbids.
    if (slot.IsEnd(token)) break;
    if (slot.constraint != nullptr) {
      const uint32_t* mask = masks_.Fill(*slot.constraint, slot.Drafts());
      if (mask == nullptr || !MaskAllows(mask, token)) break;
    }
    if (config_.ratio_acceptance) {
      float* row = ProbRow(slot, i);
      std::fill_n(row, target_vocab_, 0.0f);
      row[token] = 1.0f;  // a look-up proposes this token and no other
    }
    ++slot.num_drafts;
  }
  return slot.num_drafts > 0;
}

void Proposer::AddDraftRange(SlotState& slot, const SequencePlan& item, int32_t wanted) {
  const int32_t start = slot.computed[1];
  const int32_t lag = slot.known - start;
  TANDEM_CHECK(wanted == 0 || lag <= item.draft_tokens,
               "the draft lags more than the plan's bound");
  const int32_t count = wanted > 0 ? lag : std::min(lag, item.draft_tokens);
  if (count <= 0) return;
  const int32_t logits = builder_.Add(
      start, slot.Known().subspan(static_cast<size_t>(start), static_cast<size_t>(count)), {},
      slot.blocks.first(static_cast<size_t>(slot.num_blocks)), wanted > 0 ? 1 : 0);
  slot.draft_reach = start + count;
  if (wanted > 0) {
    drafting_.push_back({&slot, wanted, logits});
  } else {
    slot.computed[1] = slot.draft_reach;
  }
}

void Proposer::RunPass() {
  const Nanos start = meter_.Start();
  const int32_t rows = builder_.View().num_rows;
  DrawFrom(draft_->Forward(builder_.View(), pool_));
  meter_.Stop(ModelIndex::kDraft, rows, start);
}

void Proposer::DrawFrom(const Tensor& logits) {
  masks_.Clear();
  rows_.clear();
  const int64_t stride = logits.shape.rank() > 0 ? logits.dim(1) : 0;
  std::erase_if(drafting_, [&](const Drafting& drafting) {
    SlotState& slot = *drafting.slot;
    ops::SampleRow row;
    row.logits = logits.As<float>() + drafting.logits * stride;
    row.slot = &slot.draft_sampling;
    row.history = slot.History();
    row.ahead = slot.drafts.data();
    row.num_ahead = slot.num_drafts;
    if (slot.constraint != nullptr) {
      row.allowed = masks_.Fill(*slot.constraint, slot.Drafts());
      if (row.allowed == nullptr) return true;  // drafting stops before a draw, never after it
    }
    if (config_.ratio_acceptance) {
      row.probs = ProbRow(slot, slot.num_drafts);
      std::fill(row.probs + draw_vocab_, row.probs + target_vocab_, 0.0f);
    }
    rows_.push_back(row);
    return false;
  });
  if (rows_.empty()) return;
  ops_.Sample(rows_, draw_vocab_, std::span(drawn_).first(rows_.size()));
  size_t i = 0;
  std::erase_if(drafting_,
                [&](Drafting& drafting) { return !KeepDraft(drafting, drawn_[i++].token); });
}

// Takes a drawn token; true when the sequence wants another draft behind it.
bool Proposer::KeepDraft(Drafting& drafting, int32_t token) const {
  SlotState& slot = *drafting.slot;
  const bool end = slot.IsEnd(token);
  // In token match the target's own draw is emitted, so an end need not be verified. The ratio rule
  // has to judge every token that was drawn.
  if (end && !config_.ratio_acceptance) return false;
  slot.drafts[static_cast<size_t>(slot.num_drafts++)] = token;
  return !end && slot.num_drafts < drafting.wanted;
}

void Proposer::AddNextRows() {
  builder_.Clear();
  for (Drafting& drafting : drafting_) {
    SlotState& slot = *drafting.slot;
    drafting.logits = builder_.Add(slot.draft_reach, slot.Drafts().last(1), {},
                                   slot.blocks.first(static_cast<size_t>(slot.num_blocks)), 1);
    ++slot.draft_reach;
  }
}

float* Proposer::ProbRow(const SlotState& slot, int32_t draft) {
  return probs_.data() + (slot.first_prob_row + draft) * target_vocab_;
}

const float* Proposer::Probs(const SlotState& slot) const {
  return probs_.data() + slot.first_prob_row * target_vocab_;
}

}  // namespace tandem
