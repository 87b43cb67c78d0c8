// HostBlocks: pinned host memory for the evicted blocks of both models, and their copies. In it a
// block is one piece: the block of each group of the target's pool, then of the draft's, which lie
// in one piece each on the device too. Owned by the executor; engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "runtime/cache/host_tier.h"

namespace tandem {

class HostBlocks {
 public:
  // The pools' memory and the backend outlive it; a draft's pool may be empty. RESOURCE_EXHAUSTED
  // as AllocatePinned.
  static Result<std::unique_ptr<HostBlocks>> Create(int32_t num_host_blocks,
                                                    const ops::KvPool& target,
                                                    const ops::KvPool& draft,
                                                    ops::Backend& backend);

  int64_t bytes() const { return static_cast<int64_t>(memory_.bytes()); }
  // Enqueues a plan's copies beside the steps in flight; what is enqueued on the backend's stream
  // from now on waits for them.
  void Enqueue(std::span<const HostCopy> copies);

 private:
  // A group's blocks on the device.
  struct Part {
    std::byte* blocks = nullptr;
    size_t bytes = 0;  // of one
  };
  explicit HostBlocks(ops::Backend& backend) : backend_(backend) {}

  ops::Backend& backend_;
  std::vector<Part> parts_;
  size_t block_bytes_ = 0;  // of all parts
  Buffer memory_;
};

}  // namespace tandem
