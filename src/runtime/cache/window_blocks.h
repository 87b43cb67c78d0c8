// WindowBlocks: the one owner of window block ids, the blocks of layers that keep only what later
// tokens still see. A window block belongs to a block of the KvCache, its owner, and is free
// (belongs to none and is in no sequence), cached (in no sequence; its owner is in the prefix tree)
// or referenced. Part of a KvCache, which knows its blocks' window blocks and the tree; engine
// thread only. Nothing allocates after construction, except that mappings may.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/cache/eviction_list.h"

namespace tandem {

using BlockId = int32_t;
using WindowBlockId = int32_t;

// The window block that holds what a block's windowed layers keep.
struct WindowMapping {
  BlockId block = 0;
  WindowBlockId window = 0;
  bool operator==(const WindowMapping&) const = default;
};

class WindowBlocks {
 public:
  static constexpr int32_t kNone = EvictionList::kNone;  // neither block nor window block

  // All free.
  explicit WindowBlocks(int32_t count);

  int32_t size() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_referenced() const { return num_referenced_; }
  // kNone: free, or its owner was evicted while sequences held it.
  BlockId OwnerOf(WindowBlockId window) const { return At(window).owner; }
  int32_t ReferencesOf(WindowBlockId window) const { return At(window).references; }

  // Gives `owner` a window block with one reference: a free one or else the least recently used
  // cached one, which `evicted_from` has lost then (else kNone). CHECK: one of them is not
  // referenced.
  WindowBlockId Take(BlockId owner, BlockId& evicted_from);
  // Adds a reference to one that is cached or referenced.
  void Reference(WindowBlockId window);
  // Removes a reference. The last one leaves the window block cached if `owner_in_tree` (which an
  // owner of kNone is not), or else free: true, its owner has lost it.
  bool Unreference(WindowBlockId window, bool owner_in_tree);
  // One that has an owner belongs to `owner` instead.
  void Move(WindowBlockId window, BlockId owner);
  // Its owner leaves the tree and has lost it: a cached one becomes free.
  void Disown(WindowBlockId window);

  // Moves the mappings made by Take and Move since the last call to the end of `mappings`, in their
  // order.
  void MoveMappings(std::vector<WindowMapping>& mappings);

  // Aborts with both values when the counts are inconsistent.
  void CheckIntegrity() const;

 private:
  struct WindowBlock {
    int32_t references = 0;
    BlockId owner = kNone;
  };

  WindowBlock& At(WindowBlockId window) { return blocks_[static_cast<size_t>(window)]; }
  const WindowBlock& At(WindowBlockId window) const { return blocks_[static_cast<size_t>(window)]; }
  void Free(WindowBlockId window);

  std::vector<WindowBlock> blocks_;
  std::vector<WindowBlockId> free_;
  EvictionList cached_;
  int32_t num_referenced_ = 0;
  std::vector<WindowMapping> mappings_;
};

}  // namespace tandem
