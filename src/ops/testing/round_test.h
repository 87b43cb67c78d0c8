// A round's arrays in a backend's memory, and a plain model of the expected slots: shared by the
// tests of rounds. For tests only.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ops/round.h"
#include "ops/testing/op_test.h"

namespace tandem::ops {

inline constexpr int32_t kVocab = 50;
inline constexpr int32_t kDraftVocab = 40;
inline constexpr int32_t kMaxLength = 60;
inline constexpr int32_t kMaxBlocks = 20;
inline constexpr int32_t kBlockTokens = 4;
inline constexpr int32_t kMaxDrafts = 3;
inline constexpr int32_t kMaxLists = 4;

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

// The expected state of a slot.
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
  std::vector<int32_t> sent;  // drafts of the client
  std::vector<int32_t> drafts;
  int32_t reach = 0;
  PromptLayout layout;  // of the target

  int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  bool IsEnd(int32_t token) const {
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }
  int32_t At(int32_t position) const {
    return position < known() ? tokens[static_cast<size_t>(position)]
                              : drafts[static_cast<size_t>(position - known())];
  }
};

class RoundTest : public testing::TestWithParam<BackendCase> {
 protected:
  void Make(int32_t num_slots, bool ratio = false, int32_t lookup_ngram = 0) {
    max_rows_ = num_slots * 12;
    max_logits_ = num_slots * 12;
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
    item_masks_ = arena_->Take<ItemMasks>(num_slots);
    round_.header = header_;
    round_.items = items_;
    round_.new_blocks = new_blocks_;
    round_.item_masks = item_masks_;
    round_.mask_words = 2;
    round_.masks = arena_->Take<uint32_t>(max_logits_ * 2);
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
      round_.sent_samples = arena_->Take<SampleRow>(max_logits_);
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
    patch.num_sent = static_cast<int32_t>(slot.sent.size());
    patch.num_values = static_cast<int32_t>(slot.ends.size());
    patch.lists = lists_ + index * kMaxLists;
    patch.record.prompt_tokens = slot.prompt;
    patch.record.max_length = slot.max_length;
    patch.record.counted = slot.counted ? 1 : 0;
    patch.record.known = slot.known();
    patch.record.computed[0] = slot.computed[0];
    patch.record.computed[1] = slot.computed[1];
    patch.record.ended = 0;
    patch.record.layouts[0] = slot.layout;
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
    append(slot.sent.data(), slot.sent.size() * sizeof(int32_t));
    append(slot.ends.data(), slot.ends.size() * sizeof(int32_t));
    arena_->Push(patch_, 4096);
    ops().StartSlot(round_.slots, reinterpret_cast<const SlotPatch*>(patch_));
    At(index) = std::move(slot);
  }

  // ---- The plan ----

  void AddItem(RoundItem item, int32_t num_blocks) {
    item.first_new_block = static_cast<int32_t>(blocks_.size());
    item.num_new_blocks = std::max(num_blocks, 0);
    for (int32_t i = 0; i < item.num_new_blocks; ++i) blocks_.push_back(Random(0, 9999));
    item.by_probability = round_.ratio && item.num_drafts > 0 ? 1 : 0;
    item.first_prob_row =
        plan_.empty() ? 0 : plan_.back().first_prob_row + plan_.back().num_drafts + 1;
    plan_.push_back(item);
  }
  void Apply() {
    RoundHeader& header = *arena_->Host(header_);
    header.num_items = static_cast<int32_t>(plan_.size());
    header.num_mappings = static_cast<int32_t>(mappings_.size() / 2);
    header.first_mapping = static_cast<int32_t>(blocks_.size());
    std::copy(plan_.begin(), plan_.end(), arena_->Host(items_));
    std::copy(mappings_.begin(), mappings_.end(),
              std::copy(blocks_.begin(), blocks_.end(), arena_->Host(new_blocks_)));
    arena_->Push(header_, 1);
    arena_->Push(items_, num_slots());
    arena_->Push(new_blocks_, static_cast<int64_t>(blocks_.size() + mappings_.size()));
    ops().ApplyPlan(round_, static_cast<int32_t>(plan_.size()));
    for (const RoundItem& item : plan_) {
      Slot& slot = At(item.slot);
      slot.blocks.insert(slot.blocks.end(), blocks_.begin() + item.first_new_block,
                         blocks_.begin() + item.first_new_block + item.num_new_blocks);
      slot.drafts.clear();
      const int32_t room = std::max(slot.max_length - slot.known() - 1, 0);
      if (item.sent != 0 && !slot.ended) {
        slot.drafts.assign(slot.sent.begin(), slot.sent.begin() + std::min(item.num_drafts, room));
      }
      slot.reach = slot.computed[1];
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
  ItemMasks* item_masks_ = nullptr;
  float* logits_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<RoundItem> plan_;
  std::vector<int32_t> blocks_;
  std::vector<int32_t> mappings_;  // a block and its window block each
};

// One case per kind of backend: a round computes nothing that an instruction set would change.
inline std::vector<BackendCase> RoundCases() {
  std::vector<BackendCase> cases;
  for (BackendCase& backend_case : AllBackendCases()) {
    const bool cuda = backend_case.name.starts_with("cuda");
    if (cases.empty() || (cuda && !cases.back().name.starts_with("cuda"))) {
      cases.push_back(std::move(backend_case));
    }
  }
  return cases;
}

}  // namespace tandem::ops
