#include "ops/cpu/cpu_round.h"

#include <algorithm>
#include <cstring>

#include "ops/round_rules.h"

namespace tandem::ops::cpu {
namespace {

// Sets the positions of a pass's ranges, one after another.
class Layout {
 public:
  Layout(const Round& round, const PassArrays& pass, const PassBounds& bounds)
      : round_(round), pass_(pass), bounds_(bounds) {}

  void Put(int32_t seq, RowRange range) {
    rules::Place(rows_, logits_, bounds_, range, &round_.status->broken);
    rows_ += range.num_rows;
    logits_ += rules::LogitsOf(range);
    pass_.ranges[seq] = range;
    pass_.query_start[seq] = range.first_row;
    rules::FillSeq(round_.slots, pass_, range, seq);
    for (int32_t i = 0; i < range.num_rows; ++i) {
      rules::FillRow(round_.slots, pass_, range, seq, i);
    }
    for (int32_t i = 0; i < rules::LogitsOf(range); ++i) rules::FillLogitsRow(pass_, range, i);
  }
  void PutTable(int32_t seq) {
    const int32_t slot = pass_.ranges[seq].slot;
    const int32_t* const blocks = rules::BlocksOf(round_.slots, slot);
    const int64_t first = int64_t{seq} * round_.slots.max_blocks;
    const int32_t count = round_.slots.records[slot].num_blocks;
    std::copy_n(blocks, count, pass_.block_table + first);
    if (!rules::HasWindows(round_.slots, pass_)) return;
    std::transform(blocks, blocks + count, pass_.window_table + first,
                   [&](int32_t block) { return round_.slots.window_of[block]; });
  }
  // Makes the entries that no range took inert.
  void Finish(int32_t num_seqs) {
    for (int32_t seq = num_seqs; seq < bounds_.num_seqs; ++seq) {
      rules::ClearSeq(pass_, seq);
      pass_.query_start[seq] = rows_;
    }
    pass_.query_start[bounds_.num_seqs] = rows_;
    for (int32_t row = rows_; row < bounds_.num_rows; ++row) rules::ClearRow(pass_, row);
    std::fill(pass_.logits_rows + logits_, pass_.logits_rows + bounds_.num_logits, 0);
  }

 private:
  const Round& round_;
  const PassArrays& pass_;
  const PassBounds& bounds_;
  int32_t rows_ = 0;
  int32_t logits_ = 0;
};

void ClearSamples(const PassArrays& pass, const PassBounds& bounds) {
  std::fill_n(pass.samples, bounds.num_logits, SampleRow{});
}

}  // namespace

void CpuRoundOps::StartSlot(const SlotArrays& slots, const SlotPatch* patch) {
  const int32_t slot = patch->slot;
  const auto* tokens = reinterpret_cast<const int32_t*>(patch + 1);
  const int32_t known = patch->record.known;
  std::copy_n(tokens, known + patch->num_sent, rules::TokensOf(slots, slot));
  // The lists also hold floats, so copy bytes.
  std::memcpy(patch->lists, tokens + known + patch->num_sent,
              static_cast<size_t>(patch->num_values) * sizeof(int32_t));
  rules::StartRecords(slots, *patch);
  if (int32_t* counts = rules::CountsOf(slots, slot)) {
    std::fill_n(counts, slots.vocab, 0);
    for (int32_t i = 0; i < known; ++i) ++counts[tokens[i]];
  }
}

void CpuRoundOps::EndSlot(const SlotArrays& slots, int32_t slot) {
  slots.records[slot] = SlotRecord{};
}

void CpuRoundOps::ApplyPlan(const Round& round, int32_t /*max_items*/) {
  for (int32_t i = 0; i < round.header->num_mappings; ++i) {
    const int32_t* pair = round.new_blocks + round.header->first_mapping + 2 * i;
    round.slots.window_of[pair[0]] = pair[1];
  }
  for (int32_t i = 0; i < round.header->num_items; ++i) {
    const RoundItem& item = round.items[i];
    int32_t* place = rules::AppendBlocks(round.slots, item);
    if (place == nullptr) {
      round.status->broken |= kBrokenBlocks;
    } else {
      std::copy_n(round.new_blocks + item.first_new_block, item.num_new_blocks, place);
    }
    rules::ForgetDrafts(round.slots.records[item.slot]);
    if (item.sent != 0) rules::TakeSent(round.slots, item);
  }
}

void CpuRoundOps::LaySentRows(const Round& round, int32_t /*max_items*/, int32_t num_rows,
                              const float* logits) {
  std::fill_n(round.sent_samples, num_rows, SampleRow{});
  for (int32_t i = 0; i < round.header->num_items; ++i) {
    const RoundItem& item = round.items[i];
    if (item.first_sent_row < 0) continue;
    const int32_t count = round.slots.records[item.slot].num_drafts;
    for (int32_t draft = 0; draft < count; ++draft) {
      round.sent_samples[item.first_sent_row + draft] =
          rules::SentSample(round, item, draft, logits);
    }
  }
}

void CpuRoundOps::LookUpDrafts(const Round& round, int32_t /*max_items*/) {
  const SlotArrays& slots = round.slots;
  for (int32_t i = 0; i < round.header->num_items; ++i) {
    const RoundItem& item = round.items[i];
    const SlotRecord& record = slots.records[item.slot];
    const int32_t wanted = rules::DraftsWanted(record, item);
    if (wanted == 0 || item.sent != 0) continue;
    const int32_t* tokens = rules::TokensOf(slots, item.slot);
    const uint64_t match =
        rules::BestMatch(tokens, record.known, record.known - 1, 1, round.lookup_ngram);
    if (match == 0) continue;
    rules::TakeLookedUp(slots, item.slot, rules::PlaceOf(match), wanted);
    if (!round.ratio) continue;
    // A look-up proposes exactly this token.
    float* probs = round.draft_probs + item.first_prob_row * slots.vocab;
    std::fill_n(probs, record.num_drafts * slots.vocab, 0.0f);
    for (int32_t draft = 0; draft < record.num_drafts; ++draft) {
      probs[draft * slots.vocab + rules::DraftsOf(slots, item.slot)[draft]] = 1.0f;
    }
  }
}

void CpuRoundOps::LayDraftRows(const Round& round, const PassBounds& bounds) {
  Layout layout(round, round.draft, bounds);
  int32_t seq = 0;
  for (int32_t i = 0; i < round.header->num_items; ++i) {
    const RoundItem& item = round.items[i];
    RowRange range = rules::DraftRange(round.slots.records[item.slot], item, &round.status->broken);
    if (range.num_rows == 0) continue;
    if (seq == bounds.num_seqs) {
      round.status->broken |= kBrokenRows;
      break;
    }
    range.item = i;
    layout.Put(seq, range);
    layout.PutTable(seq++);
  }
  layout.Finish(seq);
}

void CpuRoundOps::LayDraftSamples(const Round& round, const PassBounds& bounds, const float* logits,
                                  int64_t stride) {
  ClearSamples(round.draft, bounds);
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const RowRange& range = round.draft.ranges[seq];
    if (range.num_logits == 0) continue;
    SampleRow& row = round.draft.samples[range.first_logits];
    row = rules::DraftSample(round, range, logits + range.first_logits * stride);
    // The draft draws from the tokens that both models know.
    if (row.probs != nullptr) {
      std::fill(row.probs + round.draw_vocab, row.probs + round.slots.vocab, 0.0f);
    }
  }
}

void CpuRoundOps::KeepDrafts(const Round& round, const PassBounds& bounds) {
  Layout layout(round, round.draft, bounds);
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    layout.Put(seq, rules::KeepDraft(round, round.draft.ranges[seq]));
  }
  layout.Finish(bounds.num_seqs);
}

void CpuRoundOps::LayTargetRows(const Round& round, const PassBounds& bounds) {
  Layout layout(round, round.target, bounds);
  const int32_t count = std::min(round.header->num_items, bounds.num_seqs);
  if (count < round.header->num_items) round.status->broken |= kBrokenRows;
  for (int32_t i = 0; i < count; ++i) {
    const RoundItem& item = round.items[i];
    RowRange range =
        rules::TargetRange(round.slots.records[item.slot], item, &round.status->broken);
    range.item = i;
    layout.Put(i, range);
    layout.PutTable(i);
  }
  layout.Finish(count);
}

void CpuRoundOps::LayTargetSamples(const Round& round, const PassBounds& bounds,
                                   const float* logits) {
  ClearSamples(round.target, bounds);
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    RowRange& range = round.target.ranges[seq];
    if (range.slot < 0) break;
    rules::CheckMasks(round, range);
    for (int32_t i = 0; i < range.num_logits; ++i) {
      round.target.samples[range.first_logits + i] = rules::TargetSample(round, range, i, logits);
    }
  }
}

void CpuRoundOps::LayVerifyRows(const Round& round, const PassBounds& bounds) {
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    round.verify[seq] = rules::VerifyOf(round, round.target.ranges[seq]);
  }
}

void CpuRoundOps::LayChosenRows(const Round& round, const PassBounds& bounds) {
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const RowRange& range = round.target.ranges[seq];
    for (int32_t i = 0; i < range.num_logits; ++i) rules::GiveChosen(round, range, i);
  }
}

void CpuRoundOps::Accept(const Round& round, const PassBounds& bounds, const float* logits) {
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const RowRange& range = round.target.ranges[seq];
    if (range.slot < 0) break;
    round.results[seq] = rules::AcceptTokens(round, range, logits);
  }
}

void CpuRoundOps::KeepLogits(const Round& round, const PassBounds& bounds, const float* logits,
                             float* kept) {
  const int64_t vocab = round.slots.vocab;
  for (int32_t seq = 0; seq < bounds.num_seqs; ++seq) {
    const RowRange& range = round.target.ranges[seq];
    if (range.slot < 0) break;
    const RoundItem& item = round.items[range.item];
    const int64_t count = rules::NumKept(item, range, round.results[seq]);
    if (count == 0) continue;
    std::copy_n(logits + (range.first_logits - range.num_context) * vocab, count * vocab,
                kept + item.first_kept * vocab);
  }
}

}  // namespace tandem::ops::cpu
