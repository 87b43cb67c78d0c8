#include "runtime/execution/device_slots.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace tandem {
namespace {

// Pinned bytes for the patches before one step; where more come at once, the host waits.
constexpr size_t kArenaBytes = size_t{1} << 20;

bool NeedsCounts(const ops::SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

}  // namespace

DeviceSlots::DeviceSlots(const DeviceMemory& memory, ops::Backend& backend)
    : memory_(memory), backend_(backend) {
  values_.reserve(kMaxListValues);
}

Result<std::unique_ptr<DeviceSlots>> DeviceSlots::Create(const DeviceMemory& memory,
                                                         ops::Backend& backend) {
  std::unique_ptr<DeviceSlots> slots(new DeviceSlots(memory, backend));
  for (Arena& arena : slots->arenas_) {
    TANDEM_ASSIGN_OR_RETURN(
        arena.pinned, backend.AllocatePinned(std::max(kArenaBytes, 2 * memory.patch_bytes())));
  }
  return slots;
}

Result<std::byte*> DeviceSlots::TakePinned(uint64_t step, size_t bytes) {
  Arena& arena = arenas_[step % kMaxLaunched];
  if (arena.step != step) {
    arena.step = step;
    arena.used = 0;
  }
  if (arena.used + bytes > arena.pinned.bytes()) {
    TANDEM_RETURN_IF_ERROR(backend_.Synchronize());
    arena.used = 0;
  }
  std::byte* place = arena.pinned.As<std::byte>() + arena.used;
  arena.used += (bytes + 63) / 64 * 64;
  return place;
}

Status DeviceSlots::Add(uint64_t step, int32_t slot, const SlotInit& init) {
  const ops::SlotArrays& slots = memory_.round().slots;
  TANDEM_CHECK(static_cast<int32_t>(init.tokens.size()) <= slots.max_seq_len,
               "longer than max_seq_len");
  ops::SlotPatch patch;
  patch.slot = slot;
  patch.record.prompt_tokens = init.prompt_tokens;
  patch.record.max_length = init.max_length;
  patch.record.counted = NeedsCounts(init.sampling) ? 1 : 0;
  patch.record.known = static_cast<int32_t>(init.tokens.size());
  patch.record.computed[0] = init.computed[0];
  patch.record.computed[1] = init.computed[1];
  patch.record.ended = 0;
  patch.sampling.params = init.sampling;
  patch.lists = memory_.Lists(slot);
  FillLists(patch.lists, *init.request, patch.sampling);
  patch.num_values = static_cast<int32_t>(values_.size());

  const size_t bytes = sizeof(patch) + init.tokens.size_bytes() +
                       static_cast<size_t>(patch.num_values) * sizeof(int32_t);
  TANDEM_ASSIGN_OR_RETURN(std::byte* const pinned, TakePinned(step, bytes));
  std::memcpy(pinned, &patch, sizeof(patch));
  std::memcpy(pinned + sizeof(patch), init.tokens.data(), init.tokens.size_bytes());
  if (patch.num_values > 0) {
    std::memcpy(pinned + sizeof(patch) + init.tokens.size_bytes(), values_.data(),
                values_.size() * sizeof(int32_t));
  }
  backend_.EnqueueCopyToDevice(memory_.patch(), pinned, bytes);
  backend_.round().StartSlot(slots, reinterpret_cast<const ops::SlotPatch*>(memory_.patch()));
  return {};
}

// Puts the lists one after the other and points the sampling record to `base`, where they will lie.
void DeviceSlots::FillLists(const int32_t* base, const Request& request,
                            ops::SlotSampling& sampling) {
  values_.clear();
  const auto add = [&](const std::vector<int32_t>& list) {
    values_.insert(values_.end(), list.begin(), list.end());
  };
  if (!request.ignore_eos) add(request.end_ids);
  const size_t bias_ids = values_.size();
  for (const LogitBias& bias : request.logit_bias) values_.push_back(bias.token);
  const size_t bias_values = values_.size();
  for (const LogitBias& bias : request.logit_bias) {
    values_.push_back(std::bit_cast<int32_t>(bias.value));
  }
  const size_t ban_tokens = values_.size();
  for (const std::vector<int32_t>& banned : request.banned_sequences) add(banned);
  const size_t ban_ends = values_.size();
  int32_t end = 0;
  for (const std::vector<int32_t>& banned : request.banned_sequences) {
    end += static_cast<int32_t>(banned.size());
    values_.push_back(end);
  }

  TANDEM_CHECK(values_.size() <= kMaxListValues, "lists longer than a request may have");
  sampling.end_ids = base;
  sampling.num_end_ids = static_cast<int32_t>(bias_ids);
  sampling.bias_ids = base + bias_ids;
  sampling.bias_values = reinterpret_cast<const float*>(base + bias_values);
  sampling.num_bias = static_cast<int32_t>(request.logit_bias.size());
  sampling.ban_tokens = base + ban_tokens;
  sampling.ban_ends = base + ban_ends;
  sampling.num_bans = static_cast<int32_t>(request.banned_sequences.size());
}

void DeviceSlots::Remove(int32_t slot) { backend_.round().EndSlot(memory_.round().slots, slot); }

}  // namespace tandem
