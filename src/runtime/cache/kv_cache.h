// KvCache: the one owner of block ids. It allocates, shares, evicts and matches prefixes, and is
// the only code that changes a reference count. It never touches the keys and values themselves:
// the pools of both models (ops::KvPool) use the same ids. Engine thread only.
//
// A block is free (in no sequence, holds nothing), cached (in no sequence, in the prefix tree) or
// referenced (in at least one sequence). Validity is not shared between the models: each tree node
// stores how many of its leading tokens each model has computed.
//
// Blocks are found by their tokens and a key. The key names everything else that decides their
// content or who may share it (an adapter, a tenant, a RoPE variant, a prefix mask). Prompts under
// different keys share nothing; the empty key is the default.
//
// Layers with a sliding window may have a pool of their own with fewer blocks, window blocks: a
// sequence holds one only for those of its blocks that later tokens still see. A block of the tree
// keeps its window block until another needs it, and a prefix is found as far as the blocks that
// the tokens after it see have theirs.
//
// With blocks of the host, what is evicted goes there and keeps its place in the tree; what has
// been there longest without use is lost when there is no room. A prefix is found across both: its
// beginning lies on the device, the rest on the host. Whoever takes it gets a fresh block for each
// block of the host (Onboard), so a match on the host never takes blocks away. KvCache lists the
// copies that this needs; the step after them reads the device's blocks and may overwrite those
// that were evicted. An evicted block is in no sequence, so that no step in flight writes it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "runtime/cache/host_tier.h"
#include "runtime/cache/kv_events.h"
#include "runtime/cache/model_index.h"
#include "runtime/cache/window_blocks.h"

namespace tandem {

using ComputedLengths = std::array<int32_t, kNumModels>;

// The retention priority of every block: TensorRT-LLM's where nobody asks for another.
constexpr int32_t kBlockPriority = 35;

struct KvCacheOptions {
  int32_t num_blocks = 0;
  int32_t block_tokens = 32;
  bool enable_reuse = true;
  // A token sees no more than this many tokens, itself among them, in the layers that have window
  // blocks; 0: no layers have them.
  int32_t window_tokens = 0;
  int32_t num_window_blocks = 0;
  int32_t num_host_blocks = 0;  // 0: what is evicted is lost; only without window blocks
  int64_t block_bytes = 0;      // of a block in both models on all ranks, for figures
  KvEvents* events = nullptr;   // outlives the cache; null: nobody follows them
};

// The part of a prompt that the prefix tree holds. The blocks are already referenced for the
// caller.
struct PrefixMatch {
  std::vector<BlockId> blocks;  // whole blocks; the target has computed all of them
  // Whole blocks after those that lie on the host; held for the caller, who passes them to Onboard
  // or Drop.
  std::vector<NodeId> on_host;
  // Valid tokens per model, from the start, including those to be copied, once they are. Target:
  // num_whole() * block_tokens + partial_tokens; the draft's is never larger.
  ComputedLengths computed{0, 0};
  // A block whose first partial_tokens continue the prompt; copy them into a fresh block. It is
  // referenced too: release it once the copy has run.
  BlockId partial_source = -1;
  // The same if that block lies on the host: held, for CopyFromHost or Drop.
  NodeId partial_on_host = -1;
  int32_t partial_tokens = 0;
  // Window blocks of the last ones of `blocks`, from blocks[first_window] on, and of the partial
  // source; referenced too. None without windows.
  std::vector<WindowBlockId> windows;
  int32_t first_window = 0;
  WindowBlockId source_window = -1;

  int32_t num_whole() const { return static_cast<int32_t>(blocks.size() + on_host.size()); }
};

struct KvCacheStats {
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;
  int32_t cached_blocks = 0;
  int32_t referenced_blocks = 0;
  int32_t block_tokens = 0;   // that a block holds
  int64_t lookup_tokens = 0;  // prompt tokens looked up
  int64_t hit_tokens = 0;     // of those, found
  int64_t evictions = 0;
  int32_t total_window_blocks = 0;
  int32_t referenced_window_blocks = 0;
  int32_t total_host_blocks = 0;
  int32_t used_host_blocks = 0;
  int64_t offloads = 0;  // blocks copied to the host: evictions that lost nothing
  int64_t onboards = 0;  // blocks copied back
  int64_t used_host_bytes = 0;
  int64_t offloaded_bytes = 0;
  int64_t onboarded_bytes = 0;
};

class KvCache {
 public:
  explicit KvCache(const KvCacheOptions& options);
  ~KvCache();
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  int32_t block_tokens() const;
  // Blocks that an Allocate can return: free and evictable ones.
  int32_t AvailableBlocks() const;

  // The longest prefix of `tokens` in the tree, leaving at least one token to compute. Takes
  // references. Apart from the partial source, it never reduces the blocks available to Allocate by
  // more than `blocks`.
  PrefixMatch Match(std::span<const int32_t> tokens, std::string_view key = {});
  // As Match, without taking references: returns the number of target tokens it would bring.
  int32_t PeekMatch(std::span<const int32_t> tokens, std::string_view key = {}) const;
  // Gives back the part of a block in a match, or all of it.
  void DropPartial(PrefixMatch& match);
  void Drop(PrefixMatch& match);
  // Counts a prompt and the used part of its match in Stats. Separate from Match, because a prompt
  // may be matched several times before it starts.
  void CountLookup(int32_t prompt_tokens, int32_t hit_tokens);

  // Takes `count` blocks, evicting least recently used leaves where none is free; all or nothing.
  // Appends to `blocks`. False when there are not enough.
  bool Allocate(int32_t count, std::vector<BlockId>& blocks);

  // Brings a match's blocks back from the host, each into a fresh block, which is appended to
  // `blocks` and referenced. There must be enough available: a CHECK.
  void Onboard(std::span<const NodeId> on_host, std::vector<BlockId>& blocks);
  // Copies a match's partial source into `to`, a whole block; the source stays on the host.
  void CopyFromHost(NodeId partial_on_host, BlockId to);
  // Moves the copies between device and host planned since the last call to the end of `copies`, in
  // their order.
  void MoveHostCopies(std::vector<HostCopy>& copies);

  // Puts the full blocks of `tokens` that the target has computed into the tree, with the draft's
  // computed length of each. A block whose content the tree already holds under another id stays
  // private, and the tree's own one cannot be evicted while descendants of it are in use. May be
  // called again with more tokens or larger `computed`; `published` is then the argument of the
  // previous call, and only the new part costs time. The caller holds a reference to each of
  // `blocks`. Changes no reference count. Where the tree's block has lost its window block
  // and no sequence reads it, it takes over the private one's. Content that lies on the host comes
  // to lie in the caller's block.
  void Publish(std::span<const int32_t> tokens, std::span<const BlockId> blocks,
               const ComputedLengths& computed, const ComputedLengths& published = {0, 0},
               std::string_view key = {});

  // Releases the references; a block that is in the tree becomes cached, any other becomes free.
  void Release(std::span<const BlockId> blocks);

  // Whether there are window blocks; the functions below change nothing without them.
  bool has_windows() const;
  // The first block of which a token at `position` sees anything in windowed layers.
  int32_t FirstWindowBlock(int32_t position) const;
  // Gives each of `blocks`, which have none, a window block and appends these to `windows`,
  // evicting those least recently used. There must be enough: a CHECK.
  void TakeWindows(std::span<const BlockId> blocks, std::vector<WindowBlockId>& windows);
  // Releases the references to the window blocks of `blocks`; those of blocks in the tree stay
  // there, others become free.
  void ReleaseWindows(std::span<const BlockId> blocks, std::span<const WindowBlockId> windows);
  // The block's window block; -1: none.
  WindowBlockId WindowOf(BlockId block) const;
  // Moves the mappings made since the last call to the end of `mappings`, in their order.
  void MoveMappings(std::vector<WindowMapping>& mappings);

  KvCacheStats Stats() const;
  // Aborts with both values when the counts are inconsistent.
  void CheckIntegrity() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
