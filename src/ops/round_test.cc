// What a round does between the passes, on every backend, against a plain account of the same
// sequences: random traffic of prompts, drafts and draws with room to spare in the bounds, more
// sequences than a block of threads; look-ups, the ratio rule's rows, and what is broken.
#include "ops/round.h"

#include <algorithm>
#include <limits>

#include "ops/op_test.h"

namespace tandem::ops {
namespace {

constexpr int32_t kVocab = 50;
constexpr int32_t kDraftVocab = 40;
constexpr int32_t kMaxLength = 60;
constexpr int32_t kMaxBlocks = 20;
constexpr int32_t kBlockTokens = 4;
constexpr int32_t kMaxDrafts = 3;
constexpr int32_t kMaxLists = 4;

// A piece of backend memory and its copy on the host.
class Arena {
 public:
  Arena(Backend& backend, size_t bytes)
      : backend_(backend), memory_(backend.Allocate(bytes).value()), host_(bytes) {}
  template <typename T>
  T* Take(int64_t count) {
    auto* place = reinterpret_cast<T*>(memory_.As<std::byte>() + used_);
    used_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
    EXPECT_LE(used_, host_.size());
    return place;
  }
  template <typename T>
  T* Host(const T* device) {
    return reinterpret_cast<T*>(
        host_.data() + (reinterpret_cast<const std::byte*>(device) - memory_.As<std::byte>()));
  }
  template <typename T>
  void Push(const T* device, int64_t count) {
    backend_.CopyToDevice(const_cast<T*>(device), Host(device),
                          static_cast<size_t>(count) * sizeof(T));
  }
  void Pull() { backend_.CopyToHost(host_.data(), memory_.data(), host_.size()); }

 private:
  Backend& backend_;
  Buffer memory_;
  std::vector<std::byte> host_;
  size_t used_ = 0;
};

// What a slot should be.
struct Slot {
  bool used = false;
  std::vector<int32_t> tokens;
  int32_t prompt = 0;
  int32_t max_length = 0;
  std::array<int32_t, 2> computed{0, 0};
  std::vector<int32_t> blocks;
  std::vector<int32_t> ends;
  bool counted = false;
  bool ended = true;
  int32_t fault = 0;
  std::vector<int32_t> drafts;
  int32_t reach = 0;

  int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  bool IsEnd(int32_t token) const {
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }
  int32_t At(int32_t position) const {
    return position < known() ? tokens[static_cast<size_t>(position)]
                              : drafts[static_cast<size_t>(position - known())];
  }
};

// What a sequence of a pass should be.
struct Seq {
  int32_t item = 0;
  int32_t slot = 0;
  int32_t start = 0;
  int32_t rows = 0;
  int32_t logits = 0;
  int32_t wanted = 0;
};

class RoundTest : public testing::TestWithParam<BackendCase> {
 protected:
  void Make(int32_t num_slots, bool ratio = false, int32_t lookup_ngram = 0) {
    max_rows_ = num_slots * 12;
    max_logits_ = num_slots * (1 + kMaxDrafts);
    arena_ = std::make_unique<Arena>(*backend_, static_cast<size_t>(num_slots) * 16384 + (1 << 20));
    slots_.assign(static_cast<size_t>(num_slots), {});
    SlotArrays& slots = round_.slots;
    slots.max_slots = num_slots;
    slots.max_seq_len = kMaxLength;
    slots.max_blocks = kMaxBlocks;
    slots.max_draft_len = kMaxDrafts;
    slots.vocab = kVocab;
    slots.records = arena_->Take<SlotRecord>(num_slots);
    slots.tokens = arena_->Take<int32_t>(num_slots * kMaxLength);
    slots.blocks = arena_->Take<int32_t>(num_slots * kMaxBlocks);
    slots.drafts = arena_->Take<int32_t>(num_slots * kMaxDrafts);
    slots.counts = arena_->Take<int32_t>(num_slots * kVocab);
    slots.sampling = arena_->Take<SlotSampling>(num_slots);
    slots.draft_sampling = arena_->Take<SlotSampling>(num_slots);
    lists_ = arena_->Take<int32_t>(num_slots * kMaxLists);
    patch_ = arena_->Take<std::byte>(4096);
    header_ = arena_->Take<RoundHeader>(1);
    items_ = arena_->Take<RoundItem>(num_slots);
    new_blocks_ = arena_->Take<int32_t>(num_slots * kMaxBlocks);
    mask_rows_ = arena_->Take<int32_t>(num_slots);
    round_.header = header_;
    round_.items = items_;
    round_.new_blocks = new_blocks_;
    round_.mask_rows = mask_rows_;
    round_.mask_words = 2;
    round_.masks = arena_->Take<uint32_t>(num_slots * 2);
    round_.ratio = ratio;
    round_.lookup_ngram = lookup_ngram;
    round_.draw_vocab = kDraftVocab;
    MakePass(round_.draft, kDraftVocab, num_slots, num_slots);
    MakePass(round_.target, kVocab, num_slots, max_logits_);
    if (ratio) {
      round_.draft_probs = arena_->Take<float>(max_logits_ * kVocab);
      round_.target_probs = arena_->Take<float>(max_logits_ * kVocab);
      round_.verify = arena_->Take<VerifyRow>(num_slots);
      round_.held = arena_->Take<int32_t>(num_slots);
      round_.next = arena_->Take<int32_t>(num_slots);
      round_.chosen = arena_->Take<SampledToken>(max_logits_);
    }
    round_.status = arena_->Take<RoundStatus>(1);
    round_.results = arena_->Take<RoundResult>(num_slots);
    logits_ = arena_->Take<float>(max_logits_ * kVocab);
    for (int32_t slot = 0; slot < num_slots; ++slot) ops().EndSlot(slots, slot);
  }
  void MakePass(PassArrays& pass, int64_t vocab, int64_t seqs, int64_t logits) {
    pass.vocab = vocab;
    pass.tokens = arena_->Take<int32_t>(max_rows_);
    pass.positions = arena_->Take<int32_t>(max_rows_);
    pass.row_seq = arena_->Take<int32_t>(max_rows_);
    pass.query_start = arena_->Take<int32_t>(seqs + 1);
    pass.context_len = arena_->Take<int32_t>(seqs);
    pass.block_table = arena_->Take<int32_t>(seqs * kMaxBlocks);
    pass.logits_rows = arena_->Take<int32_t>(logits);
    pass.ranges = arena_->Take<RowRange>(seqs);
    pass.samples = arena_->Take<SampleRow>(logits);
    pass.drawn = arena_->Take<SampledToken>(logits);
  }

  RoundOps& ops() { return backend_->round(); }
  int32_t Random(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  Slot& At(int32_t slot) { return slots_[static_cast<size_t>(slot)]; }
  int32_t num_slots() const { return static_cast<int32_t>(slots_.size()); }

  void Start(int32_t index, Slot slot) {
    slot.used = true;
    slot.ended = false;
    slot.prompt = slot.known();
    std::vector<std::byte> bytes(sizeof(SlotPatch));
    SlotPatch patch;
    patch.slot = index;
    patch.num_values = static_cast<int32_t>(slot.ends.size());
    patch.lists = lists_ + index * kMaxLists;
    patch.record.prompt_tokens = slot.prompt;
    patch.record.max_length = slot.max_length;
    patch.record.counted = slot.counted ? 1 : 0;
    patch.record.known = slot.known();
    patch.record.computed[0] = slot.computed[0];
    patch.record.computed[1] = slot.computed[1];
    patch.record.ended = 0;
    patch.sampling.params.num_top_logprobs = 5;
    patch.sampling.params.seed = static_cast<uint64_t>(index);
    patch.sampling.end_ids = patch.lists;
    patch.sampling.num_end_ids = patch.num_values;
    std::byte* place = arena_->Host(patch_);
    const auto append = [&](const void* from, size_t size) {
      if (size > 0) std::memcpy(place, from, size);
      place += size;
    };
    append(&patch, sizeof(patch));
    append(slot.tokens.data(), slot.tokens.size() * sizeof(int32_t));
    append(slot.ends.data(), slot.ends.size() * sizeof(int32_t));
    arena_->Push(patch_, 4096);
    ops().StartSlot(round_.slots, reinterpret_cast<const SlotPatch*>(patch_));
    At(index) = std::move(slot);
  }
  Slot RandomSlot() {
    Slot slot;
    const int32_t length = Random(1, 12);
    for (int32_t i = 0; i < length; ++i) slot.tokens.push_back(Random(0, kVocab - 1));
    slot.max_length = Random(length + 1, kMaxLength);
    for (int32_t i = Random(0, 3); i > 0; --i) slot.ends.push_back(Random(0, kVocab - 1));
    slot.counted = Random(0, 2) == 0;
    return slot;
  }

  // ---- The plan ----

  // A step of some of the sequences; ended ones may be named too.
  void PlanRandomly() {
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
      if (item.num_drafts > 0) {
        item.draft_tokens = lag + Random(0, 2);
      } else if (Random(0, 3) == 0) {
        item.draft_tokens = Random(1, 5);
      }
      const int32_t reach =
          (slot.known() + item.num_drafts + kBlockTokens - 1) / kBlockTokens + Random(0, 1);
      AddItem(item, reach - static_cast<int32_t>(slot.blocks.size()));
    }
  }
  void AddItem(RoundItem item, int32_t num_blocks) {
    item.first_new_block = static_cast<int32_t>(blocks_.size());
    item.num_new_blocks = std::max(num_blocks, 0);
    for (int32_t i = 0; i < item.num_new_blocks; ++i) blocks_.push_back(Random(0, 9999));
    item.first_prob_row = plan_.empty() ? 0 : plan_.back().first_prob_row + plan_.back().num_drafts;
    plan_.push_back(item);
  }
  void Apply() {
    arena_->Host(header_)->num_items = static_cast<int32_t>(plan_.size());
    std::copy(plan_.begin(), plan_.end(), arena_->Host(items_));
    std::copy(blocks_.begin(), blocks_.end(), arena_->Host(new_blocks_));
    arena_->Push(header_, 1);
    arena_->Push(items_, num_slots());
    arena_->Push(new_blocks_, static_cast<int64_t>(blocks_.size()));
    ops().ApplyPlan(round_, static_cast<int32_t>(plan_.size()));
    for (const RoundItem& item : plan_) {
      Slot& slot = At(item.slot);
      slot.blocks.insert(slot.blocks.end(), blocks_.begin() + item.first_new_block,
                         blocks_.begin() + item.first_new_block + item.num_new_blocks);
      slot.drafts.clear();
      slot.reach = slot.computed[1];
    }
  }

  // ---- Passes ----

  PassBounds Bounds(const std::vector<Seq>& seqs, int32_t max_logits) {
    PassBounds bounds;
    for (const Seq& seq : seqs) {
      bounds.num_rows += seq.rows;
      bounds.num_logits += seq.logits;
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
      for (int32_t i = 0; i < seq.logits; ++i) {
        ASSERT_EQ(logits_rows[logits + i], row - seq.logits + i);
      }
      logits += seq.logits;
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

  // ---- The draft's passes ----

  std::vector<Seq> DraftSeqs() {
    std::vector<Seq> seqs;
    for (size_t i = 0; i < plan_.size(); ++i) {
      Slot& slot = At(plan_[i].slot);
      if (slot.ended || !slot.drafts.empty()) continue;
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
      slot.computed[0] += plan_[i].target_tokens;
    }
    return seqs;
  }

  // Some draws find no token allowed, some logits that are no numbers.
  void RunTarget() {
    const std::vector<Seq> before = TargetSeqs();
    const PassBounds bounds = Bounds(before, max_logits_);
    ops().LayTargetRows(round_, bounds);
    ASSERT_NO_FATAL_FAILURE(ExpectPass(round_.target, bounds, before));

    std::vector<int32_t> first(before.size());  // logits
    int32_t next = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      first[i] = next;
      next += before[i].logits;
    }
    std::vector<Seq> seqs = before;
    for (Seq& seq : seqs) {
      if (plan_[static_cast<size_t>(seq.item)].constrained == 0) continue;
      if (arena_->Host(mask_rows_)[seq.item] >= 0 || seq.logits == 0) continue;
      seq.logits = 0;
      At(seq.slot).fault = kFaultNoTokenAllowed;
    }
    ops().LayTargetSamples(round_, bounds, logits_);
    arena_->Pull();
    std::fill_n(arena_->Host(logits_), max_logits_ * kVocab, 1.0f);
    std::vector<bool> active(static_cast<size_t>(bounds.num_logits));
    for (size_t i = 0; i < seqs.size(); ++i) {
      const Seq& seq = seqs[i];
      const bool masked = plan_[i].constrained != 0;
      for (int32_t r = 0; r < seq.logits; ++r) {
        const int32_t index = first[i] + r;
        const SampleRow& row = arena_->Host(round_.target.samples)[index];
        active[static_cast<size_t>(index)] = true;
        ASSERT_EQ(row.logits, logits_ + index * kVocab);
        ASSERT_EQ(row.slot, round_.slots.sampling + seq.slot);
        ASSERT_NO_FATAL_FAILURE(ExpectHistory(row, seq.slot));
        ASSERT_EQ(row.num_ahead, r);
        ASSERT_EQ(row.allowed, masked ? round_.masks + 2 * arena_->Host(mask_rows_)[i] : nullptr);
        const bool by_ratio = round_.ratio && seq.logits > 1;
        ASSERT_EQ(row.probs, by_ratio ? round_.target_probs + index * kVocab : nullptr);
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
    ops().Accept(round_, bounds, logits_);
    ASSERT_NO_FATAL_FAILURE(ExpectResults(seqs, first));
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
      ASSERT_EQ(row.target_probs, round_.target_probs + first[static_cast<size_t>(i)] * kVocab);
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
    // What was drawn, before Accept replaces what the ratio rule chose.
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
      const RoundResult& result = arena_->Host(round_.results)[i];
      ASSERT_EQ(result.slot, seq.slot);
      ASSERT_EQ(result.num_tokens, emitted);
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
        if (plan_[i].num_drafts > 0 || Random(0, 3) > 0) continue;
        plan_[i].constrained = 1;
        arena_->Host(mask_rows_)[i] = Random(-1, num_slots - 1);
      }
      arena_->Push(mask_rows_, num_slots);
      Apply();
      ASSERT_NO_FATAL_FAILURE(RunDrafts()) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(RunTarget()) << "step " << step;
    }
  }

  const std::unique_ptr<Backend> backend_ = GetParam().make();
  std::mt19937 random_{17};
  std::unique_ptr<Arena> arena_;
  Round round_;
  int32_t max_rows_ = 0;
  int32_t max_logits_ = 0;
  int32_t* lists_ = nullptr;
  std::byte* patch_ = nullptr;
  RoundHeader* header_ = nullptr;
  RoundItem* items_ = nullptr;
  int32_t* new_blocks_ = nullptr;
  int32_t* mask_rows_ = nullptr;
  float* logits_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<RoundItem> plan_;
  std::vector<int32_t> blocks_;
};

TEST_P(RoundTest, FollowsEverySequenceThroughTokenMatch) { RunTraffic(37, 40, false); }
TEST_P(RoundTest, FollowsEverySequenceThroughTheRatioRule) { RunTraffic(37, 40, true); }
TEST_P(RoundTest, FollowsMoreSequencesThanABlockHasThreads) { RunTraffic(2100, 5, false); }

TEST_P(RoundTest, LooksUpTheLongestAndLatestRunThatStoodEarlier) {
  for (const int32_t max_ngram : {1, 2, 4}) {
    Make(60, true, max_ngram);
    plan_.clear();
    blocks_.clear();
    for (int32_t index = 0; index < num_slots(); ++index) {
      Slot slot;
      const int32_t length = Random(1, 50);
      for (int32_t i = 0; i < length; ++i) slot.tokens.push_back(Random(0, 2 + index % 3));
      slot.max_length = kMaxLength - Random(0, 9);
      slot.computed = {length - 1, 0};
      if (index % 4 == 0) slot.ends = {1};
      Start(index, slot);
      AddItem({.slot = index,
               .target_tokens = 1,
               .samples = 1,
               .num_drafts = Random(0, 3),
               .draft_tokens = length},
              1);
    }
    Apply();
    ops().LookUpDrafts(round_, num_slots());
    arena_->Pull();
    for (int32_t index = 0; index < num_slots(); ++index) {
      const Slot& slot = At(index);
      const std::vector<int32_t>& tokens = slot.tokens;
      // The longest suffix that stood earlier, the latest such place.
      std::vector<int32_t> expected;
      const int32_t wanted = std::min(plan_[static_cast<size_t>(index)].num_drafts,
                                      slot.max_length - slot.known() - 1);
      for (int32_t n = std::min(max_ngram, slot.known() - 1);
           n >= std::min(max_ngram, 2) && expected.empty() && wanted > 0; --n) {
        for (int32_t end = slot.known() - 1; end >= n; --end) {
          if (!std::equal(tokens.end() - n, tokens.end(), tokens.begin() + end - n)) continue;
          const int32_t last = std::min(end + wanted, slot.known());
          for (int32_t at = end; at < last && !slot.IsEnd(tokens[static_cast<size_t>(at)]); ++at) {
            expected.push_back(tokens[static_cast<size_t>(at)]);
          }
          n = 0;
          break;
        }
      }
      const SlotRecord& record = arena_->Host(round_.slots.records)[index];
      const int32_t* drafts = arena_->Host(round_.slots.drafts) + index * kMaxDrafts;
      ASSERT_EQ(std::vector<int32_t>(drafts, drafts + record.num_drafts), expected);
      const float* probs = arena_->Host(round_.draft_probs) +
                           plan_[static_cast<size_t>(index)].first_prob_row * kVocab;
      for (const int32_t draft : expected) {
        for (int32_t token = 0; token < kVocab; ++token) {
          ASSERT_EQ(probs[token], token == draft ? 1.0f : 0.0f);
        }
        probs += kVocab;
      }
    }
  }
}

TEST_P(RoundTest, ReportsWhatDoesNotFit) {
  const auto broken = [&](int32_t target_tokens, int32_t draft_tokens, int32_t num_blocks,
                          int32_t num_rows) {
    Make(2);
    Slot slot;
    slot.tokens = {1, 2, 3};
    slot.max_length = 20;
    Start(0, slot);
    plan_.clear();
    blocks_.clear();
    AddItem({.slot = 0,
             .target_tokens = target_tokens,
             .samples = 1,
             .num_drafts = 1,
             .draft_tokens = draft_tokens},
            num_blocks);
    Apply();
    ops().LayDraftRows(round_, {.num_rows = num_rows, .num_seqs = 1, .num_logits = 1});
    ops().LayTargetRows(round_, {.num_rows = num_rows, .num_seqs = 1, .num_logits = 2});
    arena_->Pull();
    return arena_->Host(round_.status)->broken;
  };
  EXPECT_EQ(broken(3, 3, 1, 4), 0);
  EXPECT_EQ(broken(2, 3, 1, 4), kBrokenSamples);
  EXPECT_EQ(broken(3, 2, 1, 4), kBrokenLag);
  EXPECT_EQ(broken(3, 3, kMaxBlocks + 1, 4), kBrokenBlocks);
  EXPECT_EQ(broken(3, 3, 1, 2), kBrokenRows);
}

// One case a kind of backend: a round computes nothing that an instruction set would change.
std::vector<BackendCase> Cases() {
  std::vector<BackendCase> cases;
  for (BackendCase& backend_case : AllBackendCases()) {
    const bool cuda = backend_case.name.starts_with("cuda");
    if (cases.empty() || (cuda && !cases.back().name.starts_with("cuda"))) {
      cases.push_back(std::move(backend_case));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Backends, RoundTest, testing::ValuesIn(Cases()), CaseName);

}  // namespace
}  // namespace tandem::ops
