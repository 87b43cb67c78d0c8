#include "runtime/cache/window_blocks.h"

#include <string>

#include "base/check.h"
#include "runtime/cache/check_count.h"

namespace tandem {

WindowBlocks::WindowBlocks(int32_t count) : blocks_(static_cast<size_t>(count)), cached_(count) {
  free_.reserve(blocks_.size());
  for (WindowBlockId window = count - 1; window >= 0; --window) free_.push_back(window);
  mappings_.reserve(blocks_.size());
}

WindowBlockId WindowBlocks::Take(BlockId owner, BlockId& evicted_from) {
  evicted_from = kNone;
  if (free_.empty()) {
    const WindowBlockId oldest = cached_.oldest();
    TANDEM_CHECK(oldest != kNone,
                 std::to_string(size()) + " window blocks are fewer than sequences need");
    evicted_from = OwnerOf(oldest);
    Disown(oldest);
  }
  const WindowBlockId window = free_.back();
  free_.pop_back();
  At(window).references = 1;
  ++num_referenced_;
  Move(window, owner);
  return window;
}

void WindowBlocks::Reference(WindowBlockId window) {
  if (At(window).references++ > 0) return;
  ++num_referenced_;
  cached_.Remove(window);
}

bool WindowBlocks::Unreference(WindowBlockId window, bool owner_in_tree) {
  WindowBlock& block = At(window);
  TANDEM_CHECK(block.references > 0,
               "window block " + std::to_string(window) + " is released too often");
  if (--block.references > 0) return false;
  --num_referenced_;
  if (owner_in_tree) {
    cached_.PushNewest(window);
  } else {
    Free(window);
  }
  return !owner_in_tree;
}

void WindowBlocks::Move(WindowBlockId window, BlockId owner) {
  At(window).owner = owner;
  mappings_.push_back({owner, window});
}

void WindowBlocks::Disown(WindowBlockId window) {
  At(window).owner = kNone;
  if (At(window).references > 0) return;
  cached_.Remove(window);
  Free(window);
}

void WindowBlocks::Free(WindowBlockId window) {
  At(window) = {};
  free_.push_back(window);
}

void WindowBlocks::MoveMappings(std::vector<WindowMapping>& mappings) {
  mappings.insert(mappings.end(), mappings_.begin(), mappings_.end());
  mappings_.clear();
}

void WindowBlocks::CheckIntegrity() const {
  int32_t referenced = 0, cached = 0;
  for (const WindowBlock& block : blocks_) {
    if (block.references > 0) {
      ++referenced;
    } else if (block.owner != kNone) {
      ++cached;
    }
  }
  CheckCount(referenced, num_referenced_, "referenced window blocks");
  CheckCount(cached, cached_.size(), "cached window blocks");
  CheckCount(size() - referenced - cached, std::ssize(free_), "free window blocks");
  int32_t listed = 0;
  for (WindowBlockId window = cached_.oldest(); window != kNone && listed <= cached;
       window = cached_.NewerThan(window)) {
    CheckCount(At(window).references, 0, "references of a cached window block");
    ++listed;
  }
  CheckCount(listed, cached, "length of the list of cached window blocks");
}

}  // namespace tandem
