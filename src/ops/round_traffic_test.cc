// The part of a round between the passes, on every backend, compared with a plain model of the same
// sequences: random traffic of prompts, drafts and draws with room to spare in the bounds, more
// sequences than a block has threads, and the ratio rule's rows.
#include <cstring>
#include <limits>

#include "ops/testing/round_test.h"

namespace tandem::ops {
namespace {

// The expected state of a sequence of a pass.
struct Seq {
  int32_t item = 0;
  int32_t slot = 0;
  int32_t start = 0;
  int32_t rows = 0;
  int32_t logits = 0;
  int32_t context = 0;  // logits before those
  int32_t wanted = 0;
};

class RoundTrafficTest : public RoundTest {
 protected:
  Slot RandomSlot() {
    Slot slot;
    const int32_t length = Random(1, 12);
    for (int32_t i = 0; i < length; ++i) slot.tokens.push_back(Random(0, kVocab - 1));
    slot.max_length = Random(length + 1, kMaxLength);
    for (int32_t i = Random(0, 3); i > 0; --i) slot.ends.push_back(Random(0, kVocab - 1));
    slot.counted = Random(0, 2) == 0;
    const int32_t sent = std::min(Random(0, kMaxDrafts), slot.max_length - length - 1);
    for (int32_t i = 0; i < sent; ++i) slot.sent.push_back(Random(0, kVocab - 1));
    return slot;
  }

  // A step of some of the sequences; ended ones may be named too.
  void PlanRandomly() {
    num_kept_ = 0;
    plan_.clear();
    blocks_.clear();
    for (int32_t index = 0; index < num_slots(); ++index) {
      const Slot& slot = At(index);
      if (!slot.used || Random(0, 4) == 0) continue;
      RoundItem item;
      item.slot = index;
      const int32_t left = slot.known() - slot.computed[0];
      item.target_tokens = Random(0, 2) == 0 ? Random(1, std::max(left, 1)) : std::max(left, 1);
      item.samples = item.target_tokens == left ? 1 : 0;
      const int32_t lag = slot.known() - slot.computed[1];
      if (item.samples != 0 && left == 1 && Random(0, 3) > 0) item.num_drafts = Random(1, 3);
      if (slot.known() == slot.prompt && left == 1 && !slot.sent.empty()) {
        item.sent = 1;
        item.num_drafts = Random(0, static_cast<int32_t>(slot.sent.size()));
      } else if (item.num_drafts > 0) {
        item.draft_tokens = lag + Random(0, 2);
      } else if (Random(0, 3) == 0) {
        item.draft_tokens = Random(1, 5);
      }
      item.keeps_context = Random(0, 2) == 0 ? 1 : 0;
      item.keeps_drawn = Random(0, 2) == 0 ? 1 : 0;
      if (item.keeps_context + item.keeps_drawn > 0) {
        item.first_kept = num_kept_;
        num_kept_ += item.target_tokens + item.num_drafts;
      }
      const int32_t reach =
          (slot.known() + item.num_drafts + kBlockTokens - 1) / kBlockTokens + Random(0, 1);
      AddItem(item, reach - static_cast<int32_t>(slot.blocks.size()));
    }
  }

  // ---- Passes ----

  PassBounds Bounds(const std::vector<Seq>& seqs, int32_t max_logits) {
    PassBounds bounds;
    for (const Seq& seq : seqs) {
      bounds.num_rows += seq.rows;
      bounds.num_logits += seq.context + seq.logits;
    }
    bounds.num_rows = std::min(std::max(bounds.num_rows, 1) + Random(0, 5), max_rows_);
    bounds.num_logits = std::min(bounds.num_logits + Random(0, 5), max_logits);
    bounds.num_seqs = std::min(static_cast<int32_t>(seqs.size()) + Random(0, 3), num_slots());
    return bounds;
  }

  void ExpectPass(const PassArrays& pass, const PassBounds& bounds, const std::vector<Seq>& seqs) {
    arena_->Pull();
    const auto* tokens = arena_->Host(pass.tokens);
    const auto* positions = arena_->Host(pass.positions);
    const auto* row_seq = arena_->Host(pass.row_seq);
    const auto* query_start = arena_->Host(pass.query_start);
    const auto* context_len = arena_->Host(pass.context_len);
    const auto* logits_rows = arena_->Host(pass.logits_rows);
    int32_t row = 0, logits = 0;
    for (int32_t s = 0; s < bounds.num_seqs; ++s) {
      ASSERT_EQ(query_start[s], row) << "sequence " << s;
      if (s >= static_cast<int32_t>(seqs.size())) {
        ASSERT_EQ(context_len[s], 0);
        continue;
      }
      const Seq& seq = seqs[static_cast<size_t>(s)];
      const Slot& slot = At(seq.slot);
      ASSERT_EQ(context_len[s], seq.rows == 0 ? 0 : seq.start + seq.rows);
      for (int32_t i = 0; i < seq.rows; ++i) {
        const int32_t token = slot.At(seq.start + i);
        ASSERT_EQ(tokens[row + i], token < pass.vocab ? token : 0);
        ASSERT_EQ(positions[row + i], seq.start + i);
        ASSERT_EQ(row_seq[row + i], s);
      }
      row += seq.rows;
      const int32_t num_logits = seq.context + seq.logits;
      for (int32_t i = 0; i < num_logits; ++i) {
        ASSERT_EQ(logits_rows[logits + i], row - num_logits + i);
      }
      logits += num_logits;
      if (seq.rows == 0) continue;
      const auto* table = arena_->Host(pass.block_table) + s * kMaxBlocks;
      ASSERT_TRUE(std::equal(slot.blocks.begin(), slot.blocks.end(), table));
    }
    ASSERT_EQ(query_start[bounds.num_seqs], row);
    for (; row < bounds.num_rows; ++row) {
      ASSERT_EQ(row_seq[row], -1);
      ASSERT_EQ(tokens[row], 0);
    }
    for (; logits < bounds.num_logits; ++logits) ASSERT_EQ(logits_rows[logits], 0);
    ASSERT_EQ(arena_->Host(round_.status)->broken, 0);
  }

  void ExpectHistory(const SampleRow& row, int32_t slot) {
    ASSERT_EQ(row.history.tokens, round_.slots.tokens + slot * kMaxLength);
    ASSERT_EQ(row.history.num_tokens, At(slot).known());
    ASSERT_EQ(row.history.prompt_tokens, At(slot).prompt);
    ASSERT_EQ(row.history.counts, At(slot).counted ? round_.slots.counts + slot * kVocab : nullptr);
    ASSERT_EQ(row.ahead, round_.slots.drafts + slot * kMaxDrafts);
  }

  // ---- Drafts of the client ----

  void LaySent() {
    int32_t num_rows = 0;
    for (auto& item : plan_) {
      if (item.sent == 0) continue;
      item.first_sent_row = num_rows;
      num_rows += item.num_drafts;
    }
    std::copy(plan_.begin(), plan_.end(), arena_->Host(items_));
    arena_->Push(items_, num_slots());
    ops().LaySentRows(round_, num_slots(), num_rows, logits_);
    arena_->Pull();
    const SampleRow* samples = arena_->Host(round_.sent_samples);
    for (const RoundItem& item : plan_) {
      if (item.sent == 0) continue;
      for (int32_t i = 0; i < item.num_drafts; ++i) {
        const SampleRow& row = samples[item.first_sent_row + i];
        if (i >= static_cast<int32_t>(At(item.slot).drafts.size())) {
          ASSERT_EQ(row.logits, nullptr);
          continue;
        }
        ASSERT_EQ(row.logits, logits_ + (item.first_sent_row + i) * kVocab);
        ASSERT_EQ(row.slot, round_.slots.draft_sampling + item.slot);
        ASSERT_NO_FATAL_FAILURE(ExpectHistory(row, item.slot));
        ASSERT_EQ(row.num_ahead, i);
        ASSERT_EQ(row.probs, round_.draft_probs + (item.first_prob_row + i) * kVocab);
      }
    }
  }

  // ---- The draft's passes ----

  std::vector<Seq> DraftSeqs() {
    std::vector<Seq> seqs;
    for (size_t i = 0; i < plan_.size(); ++i) {
      Slot& slot = At(plan_[i].slot);
      if (slot.ended || plan_[i].sent != 0) continue;
      const int32_t wanted = std::clamp(slot.max_length - slot.known() - 1, 0, plan_[i].num_drafts);
      const int32_t lag = slot.known() - slot.computed[1];
      const int32_t rows = wanted > 0 ? lag : std::min(lag, plan_[i].draft_tokens);
      if (rows == 0) continue;
      slot.reach = slot.computed[1] + rows;
      seqs.push_back({.item = static_cast<int32_t>(i),
                      .slot = plan_[i].slot,
                      .start = slot.computed[1],
                      .rows = rows,
                      .logits = wanted > 0 ? 1 : 0,
                      .wanted = wanted});
      if (wanted == 0) slot.computed[1] = slot.reach;
    }
    return seqs;
  }

  void ExpectDraftSamples(const PassBounds& bounds, const std::vector<Seq>& seqs) {
    ops().LayDraftSamples(round_, bounds, logits_, kVocab);
    arena_->Pull();
    const SampleRow* samples = arena_->Host(round_.draft.samples);
    int32_t next = 0;
    for (const Seq& seq : seqs) {
      if (seq.logits == 0) continue;
      const SampleRow& row = samples[next];
      ASSERT_EQ(row.logits, logits_ + next * kVocab);
      ASSERT_EQ(row.slot, round_.slots.draft_sampling + seq.slot);
      ExpectHistory(row, seq.slot);
      ASSERT_EQ(row.num_ahead, static_cast<int32_t>(At(seq.slot).drafts.size()));
      ASSERT_EQ(row.allowed, nullptr);
      const int64_t prob_row = plan_[static_cast<size_t>(seq.item)].first_prob_row + row.num_ahead;
      ASSERT_EQ(row.probs, round_.ratio ? round_.draft_probs + prob_row * kVocab : nullptr);
      ++next;
    }
    for (; next < bounds.num_logits; ++next) ASSERT_EQ(samples[next].logits, nullptr);
  }

  void RunDrafts() {
    std::vector<Seq> seqs = DraftSeqs();
    PassBounds bounds = Bounds(seqs, num_slots());
    ops().LayDraftRows(round_, bounds);
    ASSERT_NO_FATAL_FAILURE(ExpectPass(round_.draft, bounds, seqs));
    const int32_t num_seqs = bounds.num_seqs;
    for (int32_t draft = 0; draft < kMaxDrafts; ++draft) {
      ASSERT_NO_FATAL_FAILURE(ExpectDraftSamples(bounds, seqs));
      int32_t next = 0;
      for (Seq& seq : seqs) {
        seq.rows = 0;
        if (seq.logits == 0) continue;
        const int32_t token = Random(0, kDraftVocab - 1);
        arena_->Host(round_.draft.drawn)[next++].token = token;
        Slot& slot = At(seq.slot);
        const bool end = slot.IsEnd(token);
        if (!end || round_.ratio) slot.drafts.push_back(token);
        seq.logits = !end && static_cast<int32_t>(slot.drafts.size()) < seq.wanted ? 1 : 0;
        seq.rows = seq.logits;
        seq.start = slot.reach;
        slot.reach += seq.rows;
      }
      arena_->Push(round_.draft.drawn, num_slots());
      bounds = Bounds(seqs, num_slots());
      bounds.num_seqs = num_seqs;
      ops().KeepDrafts(round_, bounds);
      ASSERT_NO_FATAL_FAILURE(ExpectPass(round_.draft, bounds, seqs));
    }
  }

  // ---- The target's pass ----

  std::vector<Seq> TargetSeqs() {
    std::vector<Seq> seqs;
    for (size_t i = 0; i < plan_.size(); ++i) {
      Slot& slot = At(plan_[i].slot);
      Seq& seq = seqs.emplace_back(Seq{.item = static_cast<int32_t>(i), .slot = plan_[i].slot});
      if (slot.ended) continue;
      const auto drafts = static_cast<int32_t>(slot.drafts.size());
      seq.start = slot.computed[0];
      seq.rows = plan_[i].target_tokens + drafts;
      seq.logits = plan_[i].samples != 0 ? 1 + drafts : 0;
      if (plan_[i].keeps_context != 0) seq.context = plan_[i].target_tokens - plan_[i].samples;
      slot.computed[0] += plan_[i].target_tokens;
    }
    return seqs;
  }

  // Some draws find no token allowed, some logits are not numbers.
  void RunTarget() {
    const std::vector<Seq> before = TargetSeqs();
    const PassBounds bounds = Bounds(before, max_logits_);
    ops().LayTargetRows(round_, bounds);
    ASSERT_NO_FATAL_FAILURE(ExpectPass(round_.target, bounds, before));

    std::vector<int32_t> first(before.size());  // logits
    int32_t next = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      first[i] = next + before[i].context;
      next = first[i] + before[i].logits;
    }
    std::vector<Seq> seqs = before;
    for (Seq& seq : seqs) {
      if (plan_[static_cast<size_t>(seq.item)].constrained == 0) continue;
      const ItemMasks& masks = arena_->Host(item_masks_)[seq.item];
      if ((masks.dead_end == 0 && masks.late == 0) || seq.logits == 0) continue;
      seq.logits = std::min(seq.logits, masks.count);
      if (seq.logits == 0 && masks.dead_end != 0) At(seq.slot).fault = kFaultNoTokenAllowed;
    }
    ops().LayTargetSamples(round_, bounds, logits_);
    arena_->Pull();
    std::fill_n(arena_->Host(logits_), max_logits_ * kVocab, 1.0f);
    std::vector<bool> active(static_cast<size_t>(bounds.num_logits));
    for (size_t i = 0; i < seqs.size(); ++i) {
      const Seq& seq = seqs[i];
      const ItemMasks& masks = arena_->Host(item_masks_)[i];
      for (int32_t r = 0; r < seq.logits; ++r) {
        const int32_t index = first[i] + r;
        const SampleRow& row = arena_->Host(round_.target.samples)[index];
        active[static_cast<size_t>(index)] = true;
        ASSERT_EQ(row.logits, logits_ + index * kVocab);
        ASSERT_EQ(row.slot, round_.slots.sampling + seq.slot);
        ASSERT_NO_FATAL_FAILURE(ExpectHistory(row, seq.slot));
        ASSERT_EQ(row.num_ahead, r);
        const bool masked = plan_[i].constrained != 0 && r < masks.count;
        ASSERT_EQ(row.allowed, masked ? round_.masks + 2 * (masks.first + r) : nullptr);
        const bool by_ratio = round_.ratio && seq.logits > 1;
        const int64_t prob_row = plan_[i].first_prob_row + r;
        ASSERT_EQ(row.probs, by_ratio ? round_.target_probs + prob_row * kVocab : nullptr);
        ASSERT_EQ(row.given, -1);
        const Slot& slot = At(seq.slot);
        const bool agrees = r < static_cast<int32_t>(slot.drafts.size()) && Random(0, 2) > 0;
        const int32_t token = agrees ? slot.drafts[static_cast<size_t>(r)] : Random(0, kVocab - 1);
        arena_->Host(round_.target.drawn)[index].token = token;
        arena_->Host(round_.target.drawn)[index].logprob = static_cast<float>(index);
        if (Random(0, 30) == 0) {
          arena_->Host(logits_)[index * kVocab + token] =
              Random(0, 1) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                : std::numeric_limits<float>::infinity();
        }
      }
    }
    for (int32_t i = 0; i < bounds.num_logits; ++i) {
      if (!active[static_cast<size_t>(i)]) {
        ASSERT_EQ(arena_->Host(round_.target.samples)[i].logits, nullptr);
      }
    }
    arena_->Push(round_.target.drawn, max_logits_);
    arena_->Push(logits_, max_logits_ * kVocab);
    if (round_.ratio) {
      ASSERT_NO_FATAL_FAILURE(ChooseByRatio(bounds, seqs, first));
    }
    for (int64_t i = 0; i < max_logits_ * kVocab; ++i) {
      float& logit = arena_->Host(logits_)[i];
      if (logit == 1.0f) logit = static_cast<float>(i);
    }
    arena_->Push(logits_, max_logits_ * kVocab);
    ops().Accept(round_, bounds, logits_);
    ASSERT_NO_FATAL_FAILURE(ExpectResults(seqs, first));
    ASSERT_NO_FATAL_FAILURE(ExpectKept(bounds, seqs, first));
  }

  void ExpectKept(const PassBounds& bounds, const std::vector<Seq>& seqs,
                  const std::vector<int32_t>& first) {
    const auto bytes = static_cast<size_t>(std::max(num_kept_, 1)) * kVocab * sizeof(float);
    const Buffer kept = backend_->AllocatePinned(bytes).value();
    std::fill_n(kept.As<float>(), bytes / sizeof(float), -1.0f);
    ops().KeepLogits(round_, bounds, logits_, kept.As<float>());
    ASSERT_TRUE(backend_->Synchronize().ok());
    std::vector<float> expected(bytes / sizeof(float), -1.0f);
    for (size_t i = 0; i < seqs.size(); ++i) {
      const RoundItem& item = plan_[i];
      if (item.first_kept < 0 || seqs[i].rows == 0) continue;
      int32_t count = item.keeps_context != 0 ? item.target_tokens : 0;
      if (item.keeps_drawn != 0) {
        count = std::max(count, seqs[i].context + arena_->Host(round_.results)[i].num_tokens);
      }
      std::copy_n(arena_->Host(logits_) + (first[i] - seqs[i].context) * kVocab, count * kVocab,
                  expected.begin() + item.first_kept * kVocab);
    }
    // Bytes, because some logits are not numbers.
    ASSERT_EQ(std::memcmp(kept.data(), expected.data(), bytes), 0);
  }

  void ChooseByRatio(const PassBounds& bounds, const std::vector<Seq>& seqs,
                     const std::vector<int32_t>& first) {
    ops().LayVerifyRows(round_, bounds);
    arena_->Pull();
    for (int32_t i = 0; i < bounds.num_seqs; ++i) {
      const VerifyRow& row = arena_->Host(round_.verify)[i];
      if (i >= static_cast<int32_t>(seqs.size()) || seqs[static_cast<size_t>(i)].logits < 2) {
        ASSERT_EQ(row.slot, nullptr);
        continue;
      }
      const Seq& seq = seqs[static_cast<size_t>(i)];
      ASSERT_EQ(row.slot, round_.slots.sampling + seq.slot);
      ASSERT_EQ(row.position, At(seq.slot).known());
      ASSERT_EQ(row.draft, round_.slots.drafts + seq.slot * kMaxDrafts);
      ASSERT_EQ(row.num_draft, seq.logits - 1);
      ASSERT_EQ(row.draft_probs,
                round_.draft_probs + plan_[static_cast<size_t>(i)].first_prob_row * kVocab);
      ASSERT_EQ(row.target_probs,
                round_.target_probs + plan_[static_cast<size_t>(i)].first_prob_row * kVocab);
      ASSERT_EQ(row.sent, plan_[static_cast<size_t>(i)].sent);
      *arena_->Host(row.accepted) = Random(0, seq.logits - 1);
      *arena_->Host(row.next) = Random(0, kVocab - 1);
    }
    arena_->Push(round_.held, num_slots());
    arena_->Push(round_.next, num_slots());
    ops().LayChosenRows(round_, bounds);
    arena_->Pull();
    for (size_t i = 0; i < seqs.size(); ++i) {
      const int32_t held = arena_->Host(round_.held)[i];
      for (int32_t r = 0; r < seqs[i].logits; ++r) {
        const SampleRow& row = arena_->Host(round_.target.samples)[first[i] + r];
        const bool chosen = seqs[i].logits > 1 && r <= held;
        ASSERT_EQ(row.logits, chosen ? logits_ + (first[i] + r) * kVocab : nullptr);
        ASSERT_EQ(row.probs, nullptr);
        if (!chosen) continue;
        const int32_t token = r < held ? At(seqs[i].slot).drafts[static_cast<size_t>(r)]
                                       : arena_->Host(round_.next)[i];
        ASSERT_EQ(row.given, token);
        SampledToken& drawn = arena_->Host(round_.chosen)[first[i] + r];
        drawn.token = token;
        drawn.logprob = -1.0f;
      }
    }
    arena_->Push(round_.chosen, max_logits_);
  }

  void ExpectResults(const std::vector<Seq>& seqs, const std::vector<int32_t>& first) {
    // The drawn tokens, before Accept replaces those chosen by the ratio rule.
    const std::vector<SampledToken> drawn(arena_->Host(round_.target.drawn),
                                          arena_->Host(round_.target.drawn) + max_logits_);
    arena_->Pull();
    for (size_t i = 0; i < seqs.size(); ++i) {
      const Seq& seq = seqs[i];
      Slot& slot = At(seq.slot);
      const bool by_ratio = round_.ratio && seq.logits > 1;
      const int32_t known = slot.known();
      for (int32_t r = 0; r < seq.logits && !slot.ended && slot.fault == 0; ++r) {
        const int32_t index = first[i] + r;
        if (by_ratio && r > arena_->Host(round_.held)[i]) break;
        const int32_t token = by_ratio ? arena_->Host(round_.chosen)[index].token
                                       : drawn[static_cast<size_t>(index)].token;
        if (!std::isfinite(arena_->Host(logits_)[index * kVocab + token])) {
          slot.fault = kFaultBadLogits;
          break;
        }
        slot.tokens.push_back(token);
        slot.ended = slot.known() >= slot.max_length || slot.IsEnd(token);
        ASSERT_EQ(arena_->Host(round_.target.drawn)[index].token, token);
        if (!by_ratio && r + 1 < seq.logits && token != slot.drafts[static_cast<size_t>(r)]) break;
      }
      slot.ended = slot.ended || slot.fault != 0;
      const int32_t emitted = slot.known() - known;
      int32_t proposed = 0;
      if (emitted > 0) {
        proposed = seq.logits - 1;
        const bool end_held = emitted - 1 < proposed && slot.IsEnd(slot.tokens.back()) &&
                              slot.tokens.back() == slot.drafts[static_cast<size_t>(emitted - 1)];
        if (end_held) proposed = emitted - 1;
        slot.computed = {slot.known() - 1, std::min(slot.reach, known + emitted - 1)};
      }
      const ItemMasks& masks = arena_->Host(item_masks_)[i];
      const bool is_late = masks.late != 0 && masks.dead_end == 0 && masks.count == 0;
      if (seq.rows > 0 && plan_[i].samples != 0 && plan_[i].constrained != 0 && is_late) {
        slot.computed = {known - 1, std::min(slot.reach, known - 1)};
      }
      const RoundResult& result = arena_->Host(round_.results)[i];
      ASSERT_EQ(result.slot, seq.slot);
      ASSERT_EQ(result.num_tokens, emitted);
      ASSERT_EQ(result.end_id != 0, emitted > 0 && slot.IsEnd(slot.tokens.back()));
      ASSERT_EQ(result.proposed, proposed);
      ASSERT_EQ(result.accepted, std::max(emitted - 1, 0));
      ASSERT_EQ(result.computed[0], slot.computed[0]);
      ASSERT_EQ(result.computed[1], slot.computed[1]);
      ASSERT_EQ(result.fault, slot.fault);
      if (emitted > 0) {
        ASSERT_EQ(result.first_token, first[i]);
      }
      ASSERT_NO_FATAL_FAILURE(ExpectSlot(seq.slot));
    }
  }

  void ExpectSlot(int32_t index) {
    const Slot& slot = At(index);
    const SlotRecord& record = arena_->Host(round_.slots.records)[index];
    ASSERT_EQ(record.known, slot.known());
    ASSERT_EQ(record.ended != 0, slot.ended);
    ASSERT_EQ(record.num_blocks, static_cast<int32_t>(slot.blocks.size()));
    const int32_t* tokens = arena_->Host(round_.slots.tokens) + index * kMaxLength;
    ASSERT_TRUE(std::equal(slot.tokens.begin(), slot.tokens.end(), tokens));
    if (!slot.counted) return;
    const int32_t* counts = arena_->Host(round_.slots.counts) + index * kVocab;
    for (int32_t token = 0; token < kVocab; ++token) {
      ASSERT_EQ(counts[token], std::count(slot.tokens.begin(), slot.tokens.end(), token));
    }
  }

  int32_t num_kept_ = 0;

  void RunTraffic(int32_t num_slots, int32_t steps, bool ratio) {
    Make(num_slots, ratio);
    for (int32_t step = 0; step < steps; ++step) {
      for (int32_t index = 0; index < num_slots; ++index) {
        if (At(index).used && At(index).ended && Random(0, 1) == 0) {
          ops().EndSlot(round_.slots, index);
          At(index) = {};
        }
        if (!At(index).used && Random(0, 2) > 0) Start(index, RandomSlot());
      }
      PlanRandomly();
      for (size_t i = 0; i < plan_.size(); ++i) {
        if (Random(0, 3) > 0) continue;
        plan_[i].constrained = 1;
        arena_->Host(item_masks_)[i] = {.first = Random(0, num_slots - 1),
                                        .count = Random(0, 1 + kMaxDrafts),
                                        .dead_end = Random(0, 1),
                                        .late = Random(0, 1)};
      }
      arena_->Push(item_masks_, num_slots);
      Apply();
      if (ratio) {
        ASSERT_NO_FATAL_FAILURE(LaySent());
      }
      ASSERT_NO_FATAL_FAILURE(RunDrafts()) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(RunTarget()) << "step " << step;
    }
  }
};

TEST_P(RoundTrafficTest, FollowsEverySequenceThroughTokenMatch) { RunTraffic(37, 40, false); }
TEST_P(RoundTrafficTest, FollowsEverySequenceThroughTheRatioRule) { RunTraffic(37, 40, true); }
TEST_P(RoundTrafficTest, FollowsMoreSequencesThanABlockHasThreads) { RunTraffic(2100, 5, false); }
INSTANTIATE_TEST_SUITE_P(Backends, RoundTrafficTest, testing::ValuesIn(RoundCases()), CaseName);

}  // namespace
}  // namespace tandem::ops
