#include "runtime/execution/slot_state.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {
namespace {

bool NeedsCounts(const ops::SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

}  // namespace

bool SlotState::IsEnd(int32_t token) const {
  return std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end();
}

ops::SlotHistory SlotState::History() {
  return {tokens.data(), known, prompt_tokens, counted ? counts.data() : nullptr};
}

SlotTable::SlotTable(const Limits& limits)
    : limits_(limits),
      tokens_(static_cast<size_t>(limits.max_slots) * static_cast<size_t>(limits.max_seq_len)),
      blocks_(static_cast<size_t>(limits.max_slots) * static_cast<size_t>(limits.max_blocks)),
      drafts_(static_cast<size_t>(limits.max_slots) * static_cast<size_t>(limits.max_draft_len)),
      slots_(static_cast<size_t>(limits.max_slots)) {
  const auto part = [](std::vector<int32_t>& all, size_t index, int32_t size) {
    return std::span(all).subspan(index * static_cast<size_t>(size), static_cast<size_t>(size));
  };
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].tokens = part(tokens_, i, limits.max_seq_len);
    slots_[i].blocks = part(blocks_, i, limits.max_blocks);
    slots_[i].drafts = part(drafts_, i, limits.max_draft_len);
  }
}

void SlotTable::Add(int32_t index, const SlotInit& init) {
  SlotState& slot = (*this)[index];
  TANDEM_CHECK(init.tokens.size() <= slot.tokens.size(), "longer than max_seq_len");
  std::copy(init.tokens.begin(), init.tokens.end(), slot.tokens.begin());
  slot.known = static_cast<int32_t>(init.tokens.size());
  slot.prompt_tokens = init.prompt_tokens;
  slot.max_length = init.max_length;
  slot.computed = init.computed;
  slot.num_blocks = 0;
  slot.constraint = init.constraint;
  slot.num_drafts = 0;
  slot.fault = StepFault::kNone;
  slot.ended = false;
  FillSampling(slot, init);
  slot.counted = NeedsCounts(init.sampling);
  if (!slot.counted) return;
  slot.counts.resize(static_cast<size_t>(limits_.vocab_size));
  for (const int32_t token : init.tokens) ++slot.counts[static_cast<size_t>(token)];
}

void SlotTable::FillSampling(SlotState& slot, const SlotInit& init) {
  const Request& request = *init.request;
  slot.end_ids.clear();
  if (!request.ignore_eos) slot.end_ids = request.end_ids;
  slot.bias_ids.clear();
  slot.bias_values.clear();
  for (const LogitBias& bias : request.logit_bias) {
    slot.bias_ids.push_back(bias.token);
    slot.bias_values.push_back(bias.value);
  }
  slot.ban_tokens.clear();
  slot.ban_ends.clear();
  for (const std::vector<int32_t>& banned : request.banned_sequences) {
    slot.ban_tokens.insert(slot.ban_tokens.end(), banned.begin(), banned.end());
    slot.ban_ends.push_back(static_cast<int32_t>(slot.ban_tokens.size()));
  }
  slot.sampling = {.params = init.sampling,
                   .end_ids = slot.end_ids.data(),
                   .num_end_ids = static_cast<int32_t>(slot.end_ids.size()),
                   .bias_ids = slot.bias_ids.data(),
                   .bias_values = slot.bias_values.data(),
                   .num_bias = static_cast<int32_t>(slot.bias_ids.size()),
                   .ban_tokens = slot.ban_tokens.data(),
                   .ban_ends = slot.ban_ends.data(),
                   .num_bans = static_cast<int32_t>(slot.ban_ends.size())};
  slot.draft_sampling = slot.sampling;
  slot.draft_sampling.params.num_top_logprobs = -1;
}

void SlotTable::Remove(int32_t index) {
  SlotState& slot = (*this)[index];
  if (slot.counted) {
    for (const int32_t token : slot.Known()) slot.counts[static_cast<size_t>(token)] = 0;
  }
  slot.ended = true;
  slot.known = 0;
  slot.num_blocks = 0;
  slot.constraint = nullptr;
}

void SlotTable::AddBlocks(int32_t index, std::span<const BlockId> blocks) {
  SlotState& slot = (*this)[index];
  TANDEM_CHECK(static_cast<size_t>(slot.num_blocks) + blocks.size() <= slot.blocks.size(),
               "more blocks than a sequence can have");
  std::copy(blocks.begin(), blocks.end(), slot.blocks.begin() + slot.num_blocks);
  slot.num_blocks += static_cast<int32_t>(blocks.size());
}

void SlotTable::Append(SlotState& slot, int32_t token) {
  TANDEM_CHECK(slot.known < slot.max_length, "a sequence past its longest length");
  slot.tokens[static_cast<size_t>(slot.known++)] = token;
  if (slot.counted) ++slot.counts[static_cast<size_t>(token)];
  slot.ended = slot.known >= slot.max_length || slot.IsEnd(token);
}

}  // namespace tandem
