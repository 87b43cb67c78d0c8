// The rules of a round for one sequence: plain functions on plain structs, one source for the CPU
// and the GPU. They read and write only the slot's own state, so that sequences can go to any
// thread; values that depend on several sequences (the position of rows in a pass) are passed in as
// numbers. Used by the backends' RoundOps; the runtime uses kRoundLag and IsEnd from here.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "ops/round.h"

namespace tandem::ops::rules {

// After a round that drafted, the draft model lags one token, or two if all of its drafts were
// accepted.
constexpr int32_t kRoundLag = 2;

TANDEM_HOST_DEVICE inline int32_t Smaller(int32_t a, int32_t b) { return a < b ? a : b; }

TANDEM_HOST_DEVICE inline bool IsEnd(const SlotSampling& sampling, int32_t token) {
  for (int32_t i = 0; i < sampling.num_end_ids; ++i) {
    if (sampling.end_ids[i] == token) return true;
  }
  return false;
}

TANDEM_HOST_DEVICE inline int32_t* TokensOf(const SlotArrays& slots, int32_t slot) {
  return slots.tokens + int64_t{slot} * slots.max_seq_len;
}
TANDEM_HOST_DEVICE inline int32_t* BlocksOf(const SlotArrays& slots, int32_t slot) {
  return slots.blocks + int64_t{slot} * slots.max_blocks;
}
TANDEM_HOST_DEVICE inline int32_t* DraftsOf(const SlotArrays& slots, int32_t slot) {
  return slots.drafts + int64_t{slot} * slots.max_draft_len;
}
TANDEM_HOST_DEVICE inline int32_t* CountsOf(const SlotArrays& slots, int32_t slot) {
  return slots.records[slot].counted != 0 ? slots.counts + int64_t{slot} * slots.vocab : nullptr;
}
TANDEM_HOST_DEVICE inline SlotHistory HistoryOf(const SlotArrays& slots, int32_t slot) {
  const SlotRecord& record = slots.records[slot];
  SlotHistory history;
  history.tokens = TokensOf(slots, slot);
  history.num_tokens = record.known;
  history.prompt_tokens = record.prompt_tokens;
  history.counts = CountsOf(slots, slot);
  return history;
}

// ---- The start of a slot ----

// Everything in a patch except its tokens, lists and counts.
TANDEM_HOST_DEVICE inline void StartRecords(const SlotArrays& slots, const SlotPatch& patch) {
  slots.records[patch.slot] = patch.record;
  slots.sampling[patch.slot] = patch.sampling;
  slots.draft_sampling[patch.slot] = patch.sampling;
  slots.draft_sampling[patch.slot].params.num_top_logprobs = -1;
}

// ---- The start of a round ----

TANDEM_HOST_DEVICE inline bool HasWindows(const SlotArrays& slots, const PassArrays& pass) {
  return slots.window_of != nullptr && pass.window_table != nullptr;
}

// Room for the item's new blocks: their place in the slot's table, null if there is none.
TANDEM_HOST_DEVICE inline int32_t* AppendBlocks(const SlotArrays& slots, const RoundItem& item) {
  SlotRecord& record = slots.records[item.slot];
  if (record.num_blocks + item.num_new_blocks > slots.max_blocks) return nullptr;
  int32_t* place = BlocksOf(slots, item.slot) + record.num_blocks;
  record.num_blocks += item.num_new_blocks;
  return place;
}

TANDEM_HOST_DEVICE inline void ForgetDrafts(SlotRecord& record) {
  record.num_drafts = 0;
  record.draft_reach = record.computed[1];
}

// ---- Drafts ----

// The plan knows the length as an interval; here it is exact. The last token needs no draft.
TANDEM_HOST_DEVICE inline int32_t DraftsWanted(const SlotRecord& record, const RoundItem& item) {
  if (record.ended != 0) return 0;
  const int32_t room = record.max_length - record.known - 1;
  return room < 0 ? 0 : Smaller(room, item.num_drafts);
}

// The number of tokens before `end` that equal the last ones, at most max_ngram: the token at `end`
// followed them.
TANDEM_HOST_DEVICE inline int32_t MatchLength(const int32_t* tokens, int32_t size, int32_t end,
                                              int32_t max_ngram) {
  int32_t length = 0;
  while (length < max_ngram && length < end &&
         tokens[end - 1 - length] == tokens[size - 1 - length]) {
    ++length;
  }
  return length;
}
// The best match among the places first, first - stride, first - 2 * stride ...: the longest, and
// of equal ones the latest. Returns its length, with the place in the lower 32 bits, so that the
// larger number is the better match; 0 when nothing matches. A run shorter than two tokens counts
// only if max_ngram is 1.
TANDEM_HOST_DEVICE inline uint64_t BestMatch(const int32_t* tokens, int32_t size, int32_t first,
                                             int32_t stride, int32_t max_ngram) {
  uint64_t best = 0;
  int32_t longest = Smaller(max_ngram, 2) - 1;
  for (int32_t end = first; end >= 1 && longest < max_ngram; end -= stride) {
    const int32_t length = MatchLength(tokens, size, end, max_ngram);
    if (length <= longest) continue;
    longest = length;
    best = static_cast<uint64_t>(length) << 32 | static_cast<uint64_t>(end);
  }
  return best;
}
TANDEM_HOST_DEVICE inline int32_t PlaceOf(uint64_t match) {
  return static_cast<int32_t>(match & 0xffffffffu);
}

// Takes the drafts that the client sent, which follow the known tokens.
TANDEM_HOST_DEVICE inline void TakeSent(const SlotArrays& slots, const RoundItem& item) {
  SlotRecord& record = slots.records[item.slot];
  const int32_t* sent = TokensOf(slots, item.slot) + record.known;
  record.num_drafts = DraftsWanted(record, item);
  for (int32_t i = 0; i < record.num_drafts; ++i) DraftsOf(slots, item.slot)[i] = sent[i];
}

// Takes the tokens from position `end` on as drafts; stops at an end id, because nothing after it
// can be accepted.
TANDEM_HOST_DEVICE inline void TakeLookedUp(const SlotArrays& slots, int32_t slot, int32_t end,
                                            int32_t wanted) {
  SlotRecord& record = slots.records[slot];
  const int32_t* tokens = TokensOf(slots, slot);
  int32_t* drafts = DraftsOf(slots, slot);
  const int32_t count = Smaller(wanted, record.known - end);
  while (record.num_drafts < count) {
    const int32_t token = tokens[end + record.num_drafts];
    if (IsEnd(slots.sampling[slot], token)) return;
    drafts[record.num_drafts++] = token;
  }
}

// The draft model's range: all tokens that it has yet to compute if it drafts, else a catch-up.
// Empty (no rows) for a sequence that has ended, has drafts already or needs nothing.
TANDEM_HOST_DEVICE inline RowRange DraftRange(SlotRecord& record, const RoundItem& item,
                                              int32_t* broken) {
  RowRange range;
  range.slot = item.slot;
  if (record.ended != 0 || record.num_drafts > 0 || item.sent != 0) return range;
  const int32_t wanted = DraftsWanted(record, item);
  const int32_t lag = record.known - record.computed[1];
  if (wanted > 0 && lag > item.draft_tokens) *broken |= kBrokenLag;
  const int32_t count = wanted > 0 ? lag : Smaller(lag, item.draft_tokens);
  if (count <= 0) return range;
  range.start = record.computed[1];
  range.num_rows = count;
  range.num_logits = wanted > 0 ? 1 : 0;
  range.wanted = wanted;
  record.draft_reach = range.start + count;
  if (wanted == 0) record.computed[1] = record.draft_reach;
  return range;
}

// Takes the token that a drafting sequence has drawn. Returns its next range in the pass: one row,
// or none when it has its drafts; none for a sequence that drew nothing.
TANDEM_HOST_DEVICE inline RowRange KeepDraft(const Round& round, RowRange range) {
  const bool drew = range.num_logits > 0;
  range.num_rows = 0;
  range.num_logits = 0;
  if (!drew) return range;
  SlotRecord& record = round.slots.records[range.slot];
  const int32_t token = round.draft.drawn[range.first_logits].token;
  const bool end = IsEnd(round.slots.draft_sampling[range.slot], token);
  // In token match the target's own draw is emitted, so an end id need not be verified. The ratio
  // rule has to judge every drawn token.
  if (!end || round.ratio) DraftsOf(round.slots, range.slot)[record.num_drafts++] = token;
  if (end || record.num_drafts >= range.wanted) return range;
  range.start = record.draft_reach++;
  range.num_rows = 1;
  range.num_logits = 1;
  return range;
}

// ---- Rows ----

// The target's range: the planned known tokens and the drafts after them.
TANDEM_HOST_DEVICE inline RowRange TargetRange(SlotRecord& record, const RoundItem& item,
                                               int32_t* broken) {
  RowRange range;
  range.slot = item.slot;
  if (record.ended != 0) return range;
  range.start = record.computed[0];
  const bool reaches = range.start + item.target_tokens == record.known;
  if (reaches != (item.samples != 0)) *broken |= kBrokenSamples;
  range.num_rows = item.target_tokens + record.num_drafts;
  range.num_logits = item.samples != 0 ? 1 + record.num_drafts : 0;
  if (item.keeps_context != 0) range.num_context = item.target_tokens - item.samples;
  record.computed[0] += item.target_tokens;
  return range;
}

TANDEM_HOST_DEVICE inline int32_t LogitsOf(const RowRange& range) {
  return range.num_context + range.num_logits;
}

// The position of a range in its pass; first_logits: of all its rows with logits. A range that
// exceeds the bounds becomes empty.
TANDEM_HOST_DEVICE inline void Place(int32_t first_row, int32_t first_logits,
                                     const PassBounds& bounds, RowRange& range, int32_t* broken) {
  range.first_row = first_row;
  range.first_logits = first_logits + range.num_context;
  if (first_row + range.num_rows > bounds.num_rows ||
      first_logits + LogitsOf(range) > bounds.num_logits) {
    *broken |= kBrokenRows;
    range.num_rows = 0;
    range.num_logits = 0;
    range.num_context = 0;
  }
}

TANDEM_HOST_DEVICE inline int32_t ContextLen(const RowRange& range) {
  return range.num_rows > 0 ? range.start + range.num_rows : 0;
}

// Of the token at `position`.
TANDEM_HOST_DEVICE inline bool IsAfterPrefix(const PromptLayout& layout, int32_t position) {
  return layout.prefix_len > 0 && position >= layout.prefix_len;
}
TANDEM_HOST_DEVICE inline int32_t TurnOf(const PromptLayout& layout, int32_t position) {
  return layout.first_turn + (IsAfterPrefix(layout, position) ? layout.mask_position : position);
}
TANDEM_HOST_DEVICE inline int32_t SecondPositionOf(const PromptLayout& layout, int32_t position) {
  return IsAfterPrefix(layout, position) ? position - layout.prefix_len + 1 : 0;
}

TANDEM_HOST_DEVICE inline void FillSeq(const SlotArrays& slots, const PassArrays& pass,
                                       const RowRange& range, int32_t seq) {
  pass.context_len[seq] = ContextLen(range);
  if (pass.prefix_len == nullptr) return;
  pass.prefix_len[seq] = slots.records[range.slot].layouts[pass.model].prefix_len;
}
TANDEM_HOST_DEVICE inline void FillRow(const SlotArrays& slots, const PassArrays& pass,
                                       const RowRange& range, int32_t seq, int32_t i) {
  const int32_t position = range.start + i;
  const int32_t known = slots.records[range.slot].known;
  const int32_t token = position < known ? TokensOf(slots, range.slot)[position]
                                         : DraftsOf(slots, range.slot)[position - known];
  const int32_t row = range.first_row + i;
  pass.tokens[row] = token < pass.vocab ? token : 0;
  pass.positions[row] = position;
  pass.row_seq[row] = seq;
  const PromptLayout& layout = slots.records[range.slot].layouts[pass.model];
  if (pass.turns != nullptr) pass.turns[row] = TurnOf(layout, position);
  if (pass.second_positions != nullptr) {
    pass.second_positions[row] = SecondPositionOf(layout, position);
  }
}
// Row i of LogitsOf(range).
TANDEM_HOST_DEVICE inline void FillLogitsRow(const PassArrays& pass, const RowRange& range,
                                             int32_t i) {
  pass.logits_rows[range.first_logits - range.num_context + i] =
      range.first_row + range.num_rows - LogitsOf(range) + i;
}
TANDEM_HOST_DEVICE inline void ClearRow(const PassArrays& pass, int32_t row) {
  pass.tokens[row] = 0;
  pass.positions[row] = 0;
  pass.row_seq[row] = -1;
  if (pass.turns != nullptr) pass.turns[row] = 0;
  if (pass.second_positions != nullptr) pass.second_positions[row] = 0;
}
TANDEM_HOST_DEVICE inline void ClearSeq(const PassArrays& pass, int32_t seq) {
  pass.ranges[seq] = RowRange{};
  pass.context_len[seq] = 0;
  if (pass.prefix_len != nullptr) pass.prefix_len[seq] = 0;
}

// ---- Draws ----

// The row that draws the next draft of a sequence.
TANDEM_HOST_DEVICE inline SampleRow DraftSample(const Round& round, const RowRange& range,
                                                const float* logits) {
  const SlotRecord& record = round.slots.records[range.slot];
  SampleRow row;
  row.logits = logits;
  row.slot = round.slots.draft_sampling + range.slot;
  row.history = HistoryOf(round.slots, range.slot);
  row.ahead = DraftsOf(round.slots, range.slot);
  row.num_ahead = record.num_drafts;
  if (round.ratio) {
    const int64_t prob_row = round.items[range.item].first_prob_row + record.num_drafts;
    row.probs = round.draft_probs + prob_row * round.slots.vocab;
  }
  return row;
}

// Row i of the rows whose draws make distributions of the logits that the client sent.
TANDEM_HOST_DEVICE inline SampleRow SentSample(const Round& round, const RoundItem& item, int32_t i,
                                               const float* logits) {
  const int64_t vocab = round.slots.vocab;
  SampleRow row;
  row.logits = logits + (item.first_sent_row + i) * vocab;
  row.slot = round.slots.draft_sampling + item.slot;
  row.history = HistoryOf(round.slots, item.slot);
  row.ahead = DraftsOf(round.slots, item.slot);
  row.num_ahead = i;
  row.probs = round.draft_probs + (item.first_prob_row + i) * vocab;
  return row;
}

TANDEM_HOST_DEVICE inline bool ByProbability(const Round& round, const RowRange& range) {
  return range.num_logits > 1 && round.items[range.item].by_probability != 0;
}

// Ends the range at a row where no token may be drawn, or whose mask is not ready. After drafts the
// same row comes again as the first row of a later step, if the drafts are accepted; if it is the
// first row and no token may be drawn, that is a fault.
TANDEM_HOST_DEVICE inline void CheckMasks(const Round& round, RowRange& range) {
  if (range.num_logits == 0 || round.items[range.item].constrained == 0) return;
  const ItemMasks& masks = round.item_masks[range.item];
  if (masks.dead_end == 0 && masks.late == 0) return;
  range.num_logits = Smaller(range.num_logits, masks.count);
  if (masks.dead_end != 0 && masks.count == 0)
    round.slots.records[range.slot].fault = kFaultNoTokenAllowed;
}

// Row i of the rows of a sequence that the target draws from.
TANDEM_HOST_DEVICE inline SampleRow TargetSample(const Round& round, const RowRange& range,
                                                 int32_t i, const float* logits) {
  const int64_t index = range.first_logits + i;
  SampleRow row;
  row.logits = logits + index * round.slots.vocab;
  row.slot = round.slots.sampling + range.slot;
  row.history = HistoryOf(round.slots, range.slot);
  row.ahead = DraftsOf(round.slots, range.slot);
  row.num_ahead = i;
  if (round.items[range.item].constrained != 0 && i < round.item_masks[range.item].count) {
    row.allowed = round.masks + (round.item_masks[range.item].first + i) * round.mask_words;
  }
  if (ByProbability(round, range)) {
    const int64_t prob_row = round.items[range.item].first_prob_row + i;
    row.probs = round.target_probs + prob_row * round.slots.vocab;
  }
  return row;
}

TANDEM_HOST_DEVICE inline VerifyRow VerifyOf(const Round& round, const RowRange& range) {
  VerifyRow row;
  if (!ByProbability(round, range)) return row;
  const RoundItem& item = round.items[range.item];
  const int64_t first = item.first_prob_row * round.slots.vocab;
  row.slot = round.slots.sampling + range.slot;
  row.position = round.slots.records[range.slot].known;
  row.draft = DraftsOf(round.slots, range.slot);
  row.num_draft = range.num_logits - 1;
  row.sent = item.sent;
  row.threshold = item.threshold;
  row.draft_probs = round.draft_probs + first;
  row.target_probs = round.target_probs + first;
  row.accepted = round.held + range.item;
  row.next = round.next + range.item;
  return row;
}

// Makes row i a sample row for the token that was chosen by probability; inert if none was.
TANDEM_HOST_DEVICE inline void GiveChosen(const Round& round, const RowRange& range, int32_t i) {
  SampleRow& row = round.target.samples[range.first_logits + i];
  row.probs = nullptr;
  if (!ByProbability(round, range) || i > round.held[range.item]) {
    row.logits = nullptr;
    return;
  }
  const bool held = i < round.held[range.item];
  row.given = held ? DraftsOf(round.slots, range.slot)[i] : round.next[range.item];
}

// ---- The end of a round ----

// Appends a token to the sequence; false if it was the last one. logits: those the token was drawn
// from.
TANDEM_HOST_DEVICE inline bool Emit(const SlotArrays& slots, int32_t slot, int32_t token,
                                    const float* logits) {
  constexpr float kLargest = 3.402823466e+38f;
  SlotRecord& record = slots.records[slot];
  const bool valid =
      token >= 0 && token < slots.vocab && logits[token] >= -kLargest && logits[token] <= kLargest;
  if (!valid) {
    record.fault = kFaultBadLogits;
    return false;
  }
  TokensOf(slots, slot)[record.known++] = token;
  if (int32_t* counts = CountsOf(slots, slot)) ++counts[token];
  const bool end = record.known >= record.max_length || IsEnd(slots.sampling[slot], token);
  record.ended = end ? 1 : 0;
  return !end;
}

// The range would have drawn, but its first mask was not ready.
TANDEM_HOST_DEVICE inline bool IsPutOff(const Round& round, const RowRange& range) {
  const RoundItem& item = round.items[range.item];
  if (range.num_rows == 0 || item.samples == 0 || item.constrained == 0) return false;
  const ItemMasks& masks = round.item_masks[range.item];
  return masks.late != 0 && masks.dead_end == 0 && masks.count == 0;
}

// Emits the accepted drafts and the token after them. logits: [num_logits, vocab] of the pass.
TANDEM_HOST_DEVICE inline RoundResult AcceptTokens(const Round& round, const RowRange& range,
                                                   const float* logits) {
  const SlotArrays& slots = round.slots;
  SlotRecord& record = slots.records[range.slot];
  const int32_t* drafts = DraftsOf(slots, range.slot);
  const int32_t known = record.known;
  const bool by_probability = ByProbability(round, range);
  for (int32_t i = 0; i < range.num_logits; ++i) {
    const int64_t row = range.first_logits + i;
    if (by_probability) {
      if (i > round.held[range.item]) break;
      round.target.drawn[row] = round.chosen[row];
    }
    const int32_t token = round.target.drawn[row].token;
    if (!Emit(slots, range.slot, token, logits + row * slots.vocab)) break;
    if (!by_probability && i + 1 < range.num_logits && token != drafts[i]) break;
  }
  RoundResult result;
  result.slot = range.slot;
  result.first_token = range.first_logits;
  result.num_tokens = record.known - known;
  if (result.num_tokens > 0) {
    result.proposed = range.num_logits - 1;
    result.accepted = result.num_tokens - 1;
    const int32_t last = TokensOf(slots, range.slot)[record.known - 1];
    result.end_id = IsEnd(slots.sampling[range.slot], last) ? 1 : 0;
    // An accepted end id is not output; neither it nor the drafts after it count as proposed.
    const bool end_held =
        result.end_id != 0 && result.accepted < result.proposed && last == drafts[result.accepted];
    if (end_held) result.proposed = result.accepted;
    record.computed[0] = record.known - 1;
    record.computed[1] = Smaller(record.draft_reach, known + result.accepted);
  } else if (IsPutOff(round, range)) {
    // Both models compute the last known token again, to draw after it.
    record.computed[0] = known - 1;
    record.computed[1] = Smaller(record.draft_reach, known - 1);
  }
  if (record.fault != kFaultNone) record.ended = 1;
  result.computed[0] = record.computed[0];
  result.computed[1] = record.computed[1];
  result.fault = record.fault;
  return result;
}

// The number of an item's logits that the client gets, from its first row with logits on: of the
// range's known tokens, and of the tokens that were emitted.
TANDEM_HOST_DEVICE inline int32_t NumKept(const RoundItem& item, const RowRange& range,
                                          const RoundResult& result) {
  if (item.first_kept < 0 || range.num_rows == 0) return 0;
  const int32_t context = item.keeps_context != 0 ? item.target_tokens : 0;
  const int32_t drawn = item.keeps_drawn != 0 ? range.num_context + result.num_tokens : 0;
  return context > drawn ? context : drawn;
}

}  // namespace tandem::ops::rules
