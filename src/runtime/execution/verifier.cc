#include "runtime/execution/verifier.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace tandem {

Verifier::Verifier(const ExecutorConfig& config, ops::Ops& ops, ForwardPass& target,
                   const ops::KvPool& pool, SlotTable& slots, const Proposer& proposer,
                   const CostMeter& meter)
    : config_(config),
      ops_(ops),
      target_(target),
      pool_(pool),
      slots_(slots),
      proposer_(proposer),
      meter_(meter),
      builder_(config.max_num_tokens, config.max_batch_size, config.max_logits_rows,
               config.MaxBlocks(), target.vocab_size()),
      masks_(config.max_logits_rows, target.vocab_size()),
      drawn_(static_cast<size_t>(config.max_logits_rows)) {
  blocks_.reserve(static_cast<size_t>(config.max_batch_size));
  rows_.reserve(static_cast<size_t>(config.max_logits_rows));
  if (config.ratio_acceptance) {
    probs_.resize((static_cast<size_t>(config.max_draft_len) + 1) *
                  static_cast<size_t>(target.vocab_size()));
  }
}

void Verifier::Run(const BatchPlan& plan) {
  builder_.Clear();
  blocks_.clear();
  started_ = meter_.Start();
  for (const SequencePlan& item : plan.sequences) {
    SlotState& slot = slots_[item.slot];
    Block& block = blocks_.emplace_back(Block{.slot = &slot});
    if (slot.ended) continue;
    const int32_t start = slot.computed[0];
    TANDEM_CHECK(item.samples == (start + item.target_tokens == slot.known),
                 "a step samples behind the last known token, and only there");
    block.num_rows = item.samples ? 1 + slot.num_drafts : 0;
    block.logits = builder_.Add(
        start,
        slot.Known().subspan(static_cast<size_t>(start), static_cast<size_t>(item.target_tokens)),
        slot.Drafts(), slot.blocks.first(static_cast<size_t>(slot.num_blocks)), block.num_rows);
    slot.computed[0] += item.target_tokens;
  }
  if (!builder_.empty()) logits_ = target_.Forward(builder_.View(), pool_);
}

void Verifier::Sample(const BatchPlan& plan, StepResult& result) {
  masks_.Clear();
  rows_.clear();
  for (Block& block : blocks_) AddRows(block);
  ops_.Sample(rows_, target_.vocab_size(), std::span(drawn_).first(rows_.size()));
  result.step = plan.step;
  result.sequences.clear();
  result.tokens.clear();
  result.sequences.reserve(static_cast<size_t>(config_.max_batch_size));
  result.tokens.reserve(static_cast<size_t>(config_.max_logits_rows));
  for (size_t i = 0; i < blocks_.size(); ++i) Finish(plan.sequences[i], blocks_[i], result);
  // A prompt's rows, but for its last, skip the head: they say nothing of the price of drafts.
  const ops::BatchView& view = builder_.View();
  if (view.num_rows == 0 || view.num_logits < view.num_rows) return;
  const bool verifies =
      std::ranges::any_of(blocks_, [](const Block& block) { return block.num_rows > 1; });
  if (verifies) {
    meter_.StopVerify(view.num_rows, started_);
  } else {
    meter_.Stop(ModelIndex::kTarget, view.num_rows, started_);
  }
}

std::span<ops::SampleRow> Verifier::Rows(const Block& block) {
  return std::span(rows_).subspan(static_cast<size_t>(block.first_row),
                                  static_cast<size_t>(block.num_rows));
}

bool Verifier::ByRatio(const Block& block) const {
  return config_.ratio_acceptance && block.num_rows > 1;
}

void Verifier::AddRows(Block& block) {
  SlotState& slot = *block.slot;
  block.first_row = static_cast<int32_t>(rows_.size());
  for (int32_t i = 0; i < block.num_rows; ++i) {
    ops::SampleRow row;
    row.logits = logits_.As<float>() + (block.logits + i) * target_.vocab_size();
    row.slot = &slot.sampling;
    row.history = slot.History();
    row.ahead = slot.drafts.data();
    row.num_ahead = i;
    const auto ahead = slot.Drafts().first(static_cast<size_t>(i));
    // What follows an end is dropped, so no constraint has to know it.
    const bool after_end = !ahead.empty() && slot.IsEnd(ahead.back());
    if (slot.constraint != nullptr && !after_end) {
      row.allowed = masks_.Fill(*slot.constraint, ahead);
      if (row.allowed == nullptr) {
        // A dead end. Behind drafts it is met again as the first row of a later step, if they hold.
        if (i == 0) slot.fault = StepFault::kNoTokenAllowed;
        block.num_rows = i;
        break;
      }
    }
    rows_.push_back(row);
  }
  // The ratio rule draws from whole distributions, one sequence at a time.
  if (ByRatio(block)) {
    // Kept out of the common draw: AcceptByRatio samples these rows itself.
    for (ops::SampleRow& row : Rows(block)) row.given = 0;
  }
}

void Verifier::Finish(const SequencePlan& item, const Block& block, StepResult& result) {
  SlotState& slot = *block.slot;
  SequenceResult& out = result.sequences.emplace_back();
  out.slot = item.slot;
  out.first_token = static_cast<int32_t>(result.tokens.size());
  const int32_t known = slot.known;
  if (ByRatio(block)) {
    AcceptByRatio(block, result);
  } else if (block.num_rows > 0) {
    MatchTokens(block, result);
  }
  out.num_tokens = slot.known - known;
  if (out.num_tokens > 0) {
    out.proposed = block.num_rows - 1;
    out.accepted = out.num_tokens - 1;
    // An end that was drafted and held is nobody's output: not refused, and what stood behind it
    // not tested.
    const bool end_held = out.accepted < out.proposed && slot.IsEnd(slot.Known().back()) &&
                          slot.Known().back() == slot.Drafts()[static_cast<size_t>(out.accepted)];
    if (end_held) out.proposed = out.accepted;
    slot.computed[0] = slot.known - 1;
    slot.computed[1] = std::min(slot.draft_reach, known + out.accepted);
  }
  if (slot.fault != StepFault::kNone) slot.ended = true;
  out.fault = slot.fault;
  out.computed = slot.computed;
}

void Verifier::MatchTokens(const Block& block, StepResult& result) {
  SlotState& slot = *block.slot;
  for (int32_t i = 0; i < block.num_rows; ++i) {
    const ops::SampledToken& token =
        drawn_[static_cast<size_t>(block.first_row) + static_cast<size_t>(i)];
    if (!Emit(block, i, token, result)) return;
    if (i + 1 == block.num_rows || token.token != slot.drafts[static_cast<size_t>(i)]) return;
  }
}

void Verifier::AcceptByRatio(const Block& block, StepResult& result) {
  SlotState& slot = *block.slot;
  const int64_t vocab = target_.vocab_size();
  const std::span<ops::SampleRow> rows = Rows(block);
  const auto drawn = std::span(drawn_).subspan(static_cast<size_t>(block.first_row), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].given = -1;
    rows[i].probs = probs_.data() + static_cast<int64_t>(i) * vocab;
  }
  ops_.Sample(rows, vocab, drawn);
  int32_t held = 0;
  int32_t next = 0;
  const ops::VerifyRow verify = {.slot = &slot.sampling,
                                 .position = slot.known,
                                 .draft = slot.drafts.data(),
                                 .num_draft = block.num_rows - 1,
                                 .draft_probs = proposer_.Probs(slot),
                                 .target_probs = probs_.data(),
                                 .accepted = &held,
                                 .next = &next};
  ops_.VerifyAndAccept({&verify, 1}, vocab);
  for (int32_t i = 0; i <= held; ++i) {
    ops::SampleRow& row = rows[static_cast<size_t>(i)];
    row.given = i < held ? slot.drafts[static_cast<size_t>(i)] : next;
    row.probs = nullptr;
  }
  // Again, for the log-probabilities of the tokens that were chosen.
  const auto chosen = static_cast<size_t>(held) + 1;
  ops_.Sample(rows.first(chosen), vocab, drawn.first(chosen));
  for (size_t i = 0; i < chosen; ++i) {
    if (!Emit(block, static_cast<int32_t>(i), drawn[i], result)) return;
  }
}

// Puts a token behind the sequence; false when it was the last one.
bool Verifier::Emit(const Block& block, int32_t row, const ops::SampledToken& token,
                    StepResult& result) {
  SlotState& slot = *block.slot;
  const float* logits =
      rows_[static_cast<size_t>(block.first_row) + static_cast<size_t>(row)].logits;
  const bool valid = token.token >= 0 && token.token < target_.vocab_size();
  if (!valid || !std::isfinite(logits[token.token])) {
    slot.fault = StepFault::kBadLogits;
    return false;
  }
  slots_.Append(slot, token.token);
  result.tokens.push_back(token);
  // An end id is not part of the output, so it is not for the constraint either.
  if (slot.constraint != nullptr && !slot.IsEnd(token.token)) {
    slot.constraint->Commit(&token.token, 1);
  }
  return !slot.ended;
}

}  // namespace tandem
