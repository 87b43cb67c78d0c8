#include "runtime/execution/device_memory.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr size_t kAlign = 256;  // alignment of every array

size_t Aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

template <typename T>
size_t BytesOf(int64_t count) {
  return static_cast<size_t>(count) * sizeof(T);
}

// Offsets of the parts of a piece.
size_t ItemsAt() { return kAlign; }
size_t BlocksAt(int64_t slots) { return ItemsAt() + Aligned(BytesOf<ops::RoundItem>(slots)); }
size_t DraftsAt(int64_t slots) { return Aligned(BytesOf<ops::SlotRecord>(slots)); }
size_t BitsAt(int64_t slots) { return Aligned(BytesOf<ops::ItemMasks>(slots)); }
size_t ResultsAt() { return kAlign; }
size_t DrawnAt(int64_t slots) { return ResultsAt() + Aligned(BytesOf<ops::RoundResult>(slots)); }

template <typename T>
T* At(std::byte* piece, size_t offset) {
  return reinterpret_cast<T*>(piece + offset);
}

}  // namespace

class DeviceMemory::Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* place = base_ == nullptr ? nullptr : At<T>(base_, bytes_);
    bytes_ += Aligned(BytesOf<T>(count));
    return place;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

void DeviceMemory::LaySlots(Layout& layout, int64_t vocab) {
  ops::SlotArrays& slots = round_.slots;
  slots.max_slots = config_.max_batch_size;
  slots.max_seq_len = config_.max_seq_len;
  slots.max_blocks = config_.MaxBlocks();
  slots.max_draft_len = config_.MaxDrafts();
  slots.vocab = vocab;
  const int64_t count = slots.max_slots;
  drafts_bytes_ = DraftsAt(count) + BytesOf<int32_t>(count * slots.max_draft_len);
  drafts_ = layout.Take<std::byte>(static_cast<int64_t>(drafts_bytes_));
  slots.tokens = layout.Take<int32_t>(count * slots.max_seq_len);
  slots.blocks = layout.Take<int32_t>(count * slots.max_blocks);
  slots.counts = layout.Take<int32_t>(count * vocab);
  slots.sampling = layout.Take<ops::SlotSampling>(count);
  slots.draft_sampling = layout.Take<ops::SlotSampling>(count);
  lists_ = layout.Take<int32_t>(count * kMaxListValues);
  patch_bytes_ = sizeof(ops::SlotPatch) + BytesOf<int32_t>(slots.max_seq_len + kMaxListValues);
  patch_ = layout.Take<std::byte>(static_cast<int64_t>(patch_bytes_));
}

void DeviceMemory::LayPass(Layout& layout, ops::PassArrays& pass, ModelIndex model, int64_t vocab,
                           int64_t max_logits) const {
  const int64_t rows = config_.max_num_tokens;
  const int64_t seqs = config_.max_batch_size;
  pass.model = static_cast<int32_t>(model);
  pass.vocab = vocab;
  pass.tokens = layout.Take<int32_t>(rows);
  pass.positions = layout.Take<int32_t>(rows);
  pass.row_seq = layout.Take<int32_t>(rows);
  pass.query_start = layout.Take<int32_t>(seqs + 1);
  pass.context_len = layout.Take<int32_t>(seqs);
  pass.block_table = layout.Take<int32_t>(seqs * round_.slots.max_blocks);
  pass.logits_rows = layout.Take<int32_t>(max_logits);
  const RowForm& form = config_.row_forms[static_cast<size_t>(model)];
  if (form.prefixes) pass.prefix_len = layout.Take<int32_t>(seqs);
  if (form.turns) pass.turns = layout.Take<int32_t>(rows);
  if (form.windows) pass.window_table = layout.Take<int32_t>(seqs * round_.slots.max_blocks);
  if (form.second_positions) pass.second_positions = layout.Take<int32_t>(rows);
  pass.ranges = layout.Take<ops::RowRange>(seqs);
  pass.samples = layout.Take<ops::SampleRow>(max_logits);
}

void DeviceMemory::LayOut(Layout& layout, int64_t target_vocab, int64_t draft_vocab) {
  const int64_t slots = config_.max_batch_size;
  const int64_t logits = config_.max_logits_rows;
  LaySlots(layout, target_vocab);
  LayPass(layout, round_.target, ModelIndex::kTarget, target_vocab, logits);
  round_.draw_vocab = target_vocab;
  if (draft_vocab > 0) {
    round_.draw_vocab = std::min(draft_vocab, target_vocab);
    LayPass(layout, round_.draft, ModelIndex::kDraft, round_.draw_vocab, slots);
    round_.draft.drawn = layout.Take<SampledToken>(slots);
  }
  round_.lookup_ngram = config_.lookup_ngram;
  round_.ratio = config_.ratio_acceptance;
  if (const int64_t prob_rows = round_.ratio ? logits : config_.MaxSentRows(); prob_rows > 0) {
    round_.draft_probs = layout.Take<float>(prob_rows * target_vocab);
    round_.target_probs = layout.Take<float>(prob_rows * target_vocab);
    round_.verify = layout.Take<ops::VerifyRow>(slots);
    round_.held = layout.Take<int32_t>(slots);
    round_.next = layout.Take<int32_t>(slots);
    round_.chosen = layout.Take<SampledToken>(logits);
  }
  round_.sent_samples = layout.Take<ops::SampleRow>(config_.MaxSentRows());
  round_.sent_drawn = layout.Take<SampledToken>(config_.MaxSentRows());

  const bool windows = config_.row_forms[static_cast<size_t>(ModelIndex::kTarget)].windows;
  const int64_t mappings = windows ? config_.MaxMappings(config_.block_tokens) : 0;
  plan_bytes_ = BlocksAt(slots) + BytesOf<int32_t>(slots * round_.slots.max_blocks + 2 * mappings);
  plan_ = layout.Take<std::byte>(static_cast<int64_t>(plan_bytes_));
  round_.mask_words = (target_vocab + 31) / 32;
  masks_bytes_ = BitsAt(slots) + BytesOf<uint32_t>(logits * round_.mask_words);
  masks_ = layout.Take<std::byte>(static_cast<int64_t>(masks_bytes_));
  results_bytes_ = DrawnAt(slots) + BytesOf<SampledToken>(logits);
  results_ = layout.Take<std::byte>(static_cast<int64_t>(results_bytes_));
}

int64_t DeviceMemory::Bytes(const ExecutorConfig& config, int64_t target_vocab,
                            int64_t draft_vocab) {
  Layout layout(nullptr);
  DeviceMemory counted(config, nullptr);
  counted.LayOut(layout, target_vocab, draft_vocab);
  return static_cast<int64_t>(layout.bytes());
}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::Create(const ExecutorConfig& config,
                                                           int64_t target_vocab,
                                                           int64_t draft_vocab, int32_t* window_of,
                                                           ops::Backend& backend) {
  std::unique_ptr<DeviceMemory> made(new DeviceMemory(config, &backend));
  const int64_t bytes = Bytes(config, target_vocab, draft_vocab);
  TANDEM_ASSIGN_OR_RETURN(made->memory_, backend.Allocate(static_cast<size_t>(bytes)));
  Layout layout(made->memory_.As<std::byte>());
  made->LayOut(layout, target_vocab, draft_vocab);
  ops::Round& round = made->round_;
  const int64_t slots = config.max_batch_size;
  round.slots.window_of = window_of;
  round.slots.records = At<ops::SlotRecord>(made->drafts_, 0);
  round.slots.drafts = At<int32_t>(made->drafts_, DraftsAt(slots));
  round.header = At<ops::RoundHeader>(made->plan_, 0);
  round.items = At<ops::RoundItem>(made->plan_, ItemsAt());
  round.new_blocks = At<int32_t>(made->plan_, BlocksAt(slots));
  round.item_masks = At<ops::ItemMasks>(made->masks_, 0);
  round.masks = At<uint32_t>(made->masks_, BitsAt(slots));
  round.status = At<ops::RoundStatus>(made->results_, 0);
  round.results = At<ops::RoundResult>(made->results_, ResultsAt());
  round.target.drawn = At<SampledToken>(made->results_, DrawnAt(slots));
  TANDEM_RETURN_IF_ERROR(made->AllocatePinned());
  for (int32_t slot = 0; slot < config.max_batch_size; ++slot) {
    backend.round().EndSlot(round.slots, slot);  // zeroed memory is not an empty slot
  }
  return made;
}

Status DeviceMemory::AllocatePinned() {
  host_.resize(static_cast<size_t>(config_.max_launched));
  for (HostPieces& host : host_) {
    TANDEM_ASSIGN_OR_RETURN(host.plan, backend_->AllocatePinned(plan_bytes_));
    TANDEM_ASSIGN_OR_RETURN(host.drafts, backend_->AllocatePinned(drafts_bytes_));
    TANDEM_ASSIGN_OR_RETURN(host.masks, backend_->AllocatePinned(masks_bytes_));
    TANDEM_ASSIGN_OR_RETURN(host.results, backend_->AllocatePinned(results_bytes_));
    if (!config_.takes_logits) continue;
    TANDEM_ASSIGN_OR_RETURN(
        host.sent,
        backend_->AllocatePinned(BytesOf<float>(config_.MaxSentRows() * round_.slots.vocab)));
    TANDEM_ASSIGN_OR_RETURN(
        host.kept,
        backend_->AllocatePinned(BytesOf<float>(config_.max_logits_rows * round_.slots.vocab)));
  }
  return {};
}

int64_t DeviceMemory::pinned_bytes() const {
  size_t bytes = 0;
  for (const HostPieces& host : host_) {
    bytes += host.plan.bytes() + host.drafts.bytes() + host.masks.bytes() + host.results.bytes() +
             host.kept.bytes() + host.sent.bytes();
  }
  return static_cast<int64_t>(bytes);
}

DeviceMemory::HostPlan DeviceMemory::PlanOf(uint64_t step) const {
  auto* piece = HostOf(step).plan.As<std::byte>();
  return {At<ops::RoundHeader>(piece, 0), At<ops::RoundItem>(piece, ItemsAt()),
          At<int32_t>(piece, BlocksAt(config_.max_batch_size))};
}

void DeviceMemory::EnqueuePlan(uint64_t step, size_t num_blocks) {
  backend_->EnqueueCopyToDevice(plan_, HostOf(step).plan.data(),
                                BlocksAt(config_.max_batch_size) + num_blocks * sizeof(int32_t));
}

DeviceMemory::HostDrafts DeviceMemory::DraftsOf(uint64_t step) const {
  auto* piece = HostOf(step).drafts.As<std::byte>();
  return {At<ops::SlotRecord>(piece, 0), At<int32_t>(piece, DraftsAt(config_.max_batch_size))};
}

void DeviceMemory::EnqueueDrafts(uint64_t step) {
  backend_->EnqueueCopyToHost(HostOf(step).drafts.data(), drafts_, drafts_bytes_);
}

DeviceMemory::HostMasks DeviceMemory::MasksOf(uint64_t step) const {
  auto* piece = HostOf(step).masks.As<std::byte>();
  return {At<ops::ItemMasks>(piece, 0), At<uint32_t>(piece, BitsAt(config_.max_batch_size))};
}

void DeviceMemory::EnqueueMasks(uint64_t step, int32_t num_rows) {
  backend_->EnqueueCopyToDevice(
      masks_, HostOf(step).masks.data(),
      BitsAt(config_.max_batch_size) + BytesOf<uint32_t>(num_rows * round_.mask_words));
}

DeviceMemory::HostResults DeviceMemory::ResultsOf(uint64_t step) const {
  auto* piece = HostOf(step).results.As<std::byte>();
  return {At<ops::RoundStatus>(piece, 0), At<ops::RoundResult>(piece, ResultsAt()),
          At<SampledToken>(piece, DrawnAt(config_.max_batch_size))};
}

void DeviceMemory::EnqueueResults(uint64_t step, int32_t num_logits) {
  backend_->EnqueueCopyToHost(HostOf(step).results.data(), results_,
                              DrawnAt(config_.max_batch_size) + BytesOf<SampledToken>(num_logits));
}

}  // namespace tandem
