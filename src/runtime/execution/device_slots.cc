#include "runtime/execution/device_slots.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/sample_rules.h"

namespace tandem {
namespace {

// Pinned bytes for the patches before one step; if more are needed at once, the host waits.
constexpr size_t kArenaBytes = size_t{1} << 20;

}  // namespace

DeviceSlots::DeviceSlots(const DeviceMemory& memory, ops::Backend& backend, int32_t max_launched)
    : memory_(memory), backend_(backend), arenas_(static_cast<size_t>(max_launched)) {}

Result<std::unique_ptr<DeviceSlots>> DeviceSlots::Create(const DeviceMemory& memory,
                                                         ops::Backend& backend,
                                                         int32_t max_launched) {
  std::unique_ptr<DeviceSlots> slots(new DeviceSlots(memory, backend, max_launched));
  for (Arena& arena : slots->arenas_) {
    TANDEM_ASSIGN_OR_RETURN(
        arena.pinned, backend.AllocatePinned(std::max(kArenaBytes, 2 * memory.patch_bytes())));
  }
  return slots;
}

Result<std::byte*> DeviceSlots::TakePinned(uint64_t step, size_t bytes) {
  Arena& arena = arenas_[step % arenas_.size()];
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
  TANDEM_CHECK(
      static_cast<int32_t>(init.tokens.size() + init.sent_drafts.size()) <= slots.max_seq_len,
      "longer than max_seq_len");
  ops::SlotPatch patch;
  patch.slot = slot;
  patch.num_sent = static_cast<int32_t>(init.sent_drafts.size());
  patch.record.prompt_tokens = init.prompt_tokens;
  patch.record.max_length = init.max_length;
  patch.record.counted = ops::HasPenalty(init.sampling) ? 1 : 0;
  patch.record.known = static_cast<int32_t>(init.tokens.size());
  patch.record.computed[0] = init.computed[0];
  patch.record.computed[1] = init.computed[1];
  patch.record.ended = 0;
  std::ranges::copy(init.layouts, patch.record.layouts);
  patch.sampling.params = init.sampling;
  patch.lists = memory_.Lists(slot);
  PlaceLists(patch.lists, init, patch.sampling);
  patch.num_values = static_cast<int32_t>(init.lists.size());

  const size_t num_values = init.tokens.size() + init.sent_drafts.size() + init.lists.size();
  const size_t bytes = sizeof(patch) + num_values * sizeof(int32_t);
  TANDEM_ASSIGN_OR_RETURN(std::byte* const pinned, TakePinned(step, bytes));
  std::memcpy(pinned, &patch, sizeof(patch));
  auto* place = reinterpret_cast<int32_t*>(pinned + sizeof(patch));
  place = std::ranges::copy(init.tokens, place).out;
  place = std::ranges::copy(init.sent_drafts, place).out;
  std::ranges::copy(init.lists, place);
  backend_.EnqueueCopyToDevice(memory_.patch(), pinned, bytes);
  backend_.round().StartSlot(slots, reinterpret_cast<const ops::SlotPatch*>(memory_.patch()));
  return {};
}

// Points the sampling record to `base`, where the lists will be.
void DeviceSlots::PlaceLists(const int32_t* base, const SlotInit& init,
                             ops::SlotSampling& sampling) {
  TANDEM_CHECK(init.lists.size() <= kMaxListValues, "lists longer than a request may have");
  sampling.end_ids = base;
  sampling.num_end_ids = init.num_end_ids;
  sampling.bias_ids = sampling.end_ids + init.num_end_ids;
  sampling.bias_values = reinterpret_cast<const float*>(sampling.bias_ids + init.num_bias);
  sampling.num_bias = init.num_bias;
  sampling.ban_tokens = sampling.bias_ids + 2 * init.num_bias;
  sampling.ban_ends = sampling.ban_tokens + init.num_ban_tokens;
  sampling.num_bans = init.num_bans;
}

int64_t DeviceSlots::pinned_bytes() const {
  size_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.pinned.bytes();
  return static_cast<int64_t>(bytes);
}

void DeviceSlots::Remove(int32_t slot) { backend_.round().EndSlot(memory_.round().slots, slot); }

}  // namespace tandem
