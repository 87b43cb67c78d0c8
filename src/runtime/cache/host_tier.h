// HostTier: the blocks of the host that hold what was evicted from the device, and the copies
// between the two that the next plan makes. Part of a KvCache; engine thread only. Allocates
// nothing once its lists have grown.
//
// The copies of a list may overlap: those to the device wait for the ones to the host before them,
// but those to the host wait for nothing of their own list. So a host block that a list reads is
// not given out again before the list has been moved.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cache/prefix_tree.h"
#include "runtime/cache/window_blocks.h"

namespace tandem {

// A block of both models, whole.
struct HostCopy {
  BlockId block = 0;
  HostBlockId host = 0;
  bool to_host = false;
  bool operator==(const HostCopy&) const = default;
};

class HostTier {
 public:
  // All free; num_blocks are those of the device.
  HostTier(int32_t num_host_blocks, int32_t num_blocks) : size_(num_host_blocks) {
    if (size_ == 0) return;
    free_.reserve(static_cast<size_t>(size_));
    leaving_.reserve(static_cast<size_t>(size_));
    copies_.reserve(static_cast<size_t>(num_blocks));
    for (HostBlockId host = size_ - 1; host >= 0; --host) free_.push_back(host);
  }

  int32_t size() const { return size_; }
  // A free block; kNone if there is none.
  HostBlockId Take() {
    if (free_.empty()) return PrefixTree::kNone;
    const HostBlockId host = free_.back();
    free_.pop_back();
    return host;
  }
  // Free again once the copies planned so far have been moved.
  void Leave(HostBlockId host) { leaving_.push_back(host); }
  void Add(const HostCopy& copy) { copies_.push_back(copy); }

  // Moves the copies added since the last call to the end of `copies`, in their order.
  void MoveCopies(std::vector<HostCopy>& copies) {
    copies.insert(copies.end(), copies_.begin(), copies_.end());
    copies_.clear();
    free_.insert(free_.end(), leaving_.begin(), leaving_.end());
    leaving_.clear();
  }
  // Blocks that hold something, those that are leaving not included.
  int32_t num_used() const {
    return size_ - static_cast<int32_t>(free_.size()) - static_cast<int32_t>(leaving_.size());
  }

 private:
  const int32_t size_;
  std::vector<HostBlockId> free_;
  std::vector<HostBlockId> leaving_;
  std::vector<HostCopy> copies_;
};

}  // namespace tandem
