#include "runtime/cache/kv_cache.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/check.h"
#include "runtime/cache/check_count.h"
#include "runtime/cache/prefix_tree.h"

namespace tandem {
namespace {

constexpr int32_t kNone = PrefixTree::kNone;
constexpr size_t kTarget = static_cast<size_t>(ModelIndex::kTarget);
constexpr size_t kDraft = static_cast<size_t>(ModelIndex::kDraft);

size_t Index(BlockId block) { return static_cast<size_t>(block); }

struct Block {
  int32_t references = 0;  // by sequences; the first one holds the block's node
  NodeId node = kNone;     // its place in the tree; kNone: it is private, or free
  // Its own window block. Meaningful whether in the tree or not.
  WindowBlockId window = kNone;
  int32_t window_holders = 0;  // sequences that have a window block for this block, owned or not
};

}  // namespace

// Invariants, in addition to those of the tree and the obvious ones:
// - a block in the tree and the node in it name each other;
// - every block of the host belongs to one node, is free, or is about to be;
// - a node that a planned copy reads or fills is held until the copies are moved, so that it is not
// evicted and its block of the host is not written in the meantime;
// - a node with children on the host can be offloaded: there is room for it, because a block of the
// host without use can be had, if only that of its own last descendant. So no node is lost before
// its children.
struct KvCache::Impl {
  explicit Impl(const KvCacheOptions& cache_options)
      : options(cache_options),
        blocks(Index(cache_options.num_blocks)),
        tree(cache_options.num_blocks + cache_options.num_host_blocks, cache_options.block_tokens),
        host(cache_options.num_host_blocks, cache_options.num_blocks),
        windows(cache_options.num_window_blocks) {
    free.reserve(blocks.size());
    for (BlockId block = options.num_blocks - 1; block >= 0; --block) free.push_back(block);
    copied.reserve(blocks.size());
  }

  struct Found {
    int32_t whole = 0;         // blocks
    PrefixIndex::Common next;  // the part of the next block that is there, of a node
  };

  Block& At(BlockId block) {
    TANDEM_CHECK(block >= 0 && block < options.num_blocks,
                 "block " + std::to_string(block) + " of " + std::to_string(options.num_blocks));
    return blocks[Index(block)];
  }
  const Block& At(BlockId block) const { return const_cast<Impl*>(this)->At(block); }
  bool InTree(BlockId block) const { return At(block).node != kNone; }

  template <typename Visit>
  Found Walk(std::span<const int32_t> tokens, std::string_view key, Visit visit) const;

  void Reference(BlockId block);
  void Unreference(BlockId block);
  void HoldWhereItLies(NodeId node);
  void EvictOldest();
  HostBlockId TakeHostBlock();
  void Lose(NodeId node);
  BlockId TakeFree();
  NodeId TakeOver(NodeId on_host, BlockId block);

  // How far a prefix that the tree holds can be used: as far as the windows reach.
  Found Usable(std::span<const int32_t> tokens, std::string_view key) const;
  bool HasWindow(BlockId block) const { return At(block).window != kNone; }
  int32_t FirstWindowBlock(int32_t position) const {
    return std::max(position - options.window_tokens + 1, 0) / options.block_tokens;
  }
  WindowBlockId ReferenceWindow(BlockId block);
  void LeaveWindowToTree(BlockId block, BlockId other);
  void CheckWindows() const;

  const KvCacheOptions options;
  std::vector<Block> blocks;
  PrefixTree tree;
  HostTier host;
  std::vector<BlockId> free;
  std::vector<NodeId> copied;  // held for the copies planned
  int32_t num_referenced = 0;  // blocks with references
  int64_t lookup_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t evictions = 0;
  int64_t offloads = 0;
  int64_t onboards = 0;
  WindowBlocks windows;
};

// Calls visit(node) for each whole block of the longest prefix that leaves a token to compute.
template <typename Visit>
KvCache::Impl::Found KvCache::Impl::Walk(std::span<const int32_t> tokens, std::string_view key,
                                         Visit visit) const {
  Found found;
  if (!options.enable_reuse || tokens.empty()) return found;
  const std::optional<NodeId> root = tree.FindRoot(key);
  if (!root) return found;
  NodeId parent = *root;
  const auto block_tokens = static_cast<size_t>(options.block_tokens);
  std::span<const int32_t> rest = tokens.first(tokens.size() - 1);
  while (rest.size() >= block_tokens) {
    const NodeId node = tree.Find(parent, rest.first(block_tokens));
    if (node == kNone) break;
    visit(node);
    parent = node;
    ++found.whole;
    rest = rest.subspan(block_tokens);
  }
  if (!rest.empty()) found.next = tree.FindCommon(parent, rest);
  return found;
}

void KvCache::Impl::Reference(BlockId block) {
  Block& referenced = At(block);
  if (referenced.references++ > 0) return;
  ++num_referenced;
  if (referenced.node != kNone) tree.Hold(referenced.node);
}

void KvCache::Impl::Unreference(BlockId block) {
  Block& released = At(block);
  TANDEM_CHECK(released.references > 0,
               "block " + std::to_string(block) + " is released too often");
  if (--released.references > 0) return;
  --num_referenced;
  if (released.node != kNone) {
    tree.Unhold(released.node);
    return;
  }
  TANDEM_CHECK(released.window == kNone && released.window_holders == 0,
               "a free block has a window block");
  free.push_back(block);
}

void KvCache::Impl::HoldWhereItLies(NodeId node) {
  if (tree.At(node).on_host()) {
    tree.Hold(node);
  } else {
    Reference(tree.At(node).block);
  }
}

// ---- Eviction and the host ----

void KvCache::Impl::EvictOldest() {
  const NodeId node = tree.oldest_on_device();
  const BlockId block = tree.At(node).block;
  TANDEM_CHECK(At(block).references == 0, "evicting block " + std::to_string(block) + " with " +
                                              std::to_string(At(block).references) + " references");
  // Its window block may be referenced, by a sequence that has its own copy of the block.
  if (HasWindow(block)) windows.Disown(At(block).window);
  if (const HostBlockId place = TakeHostBlock(); place != kNone) {
    if (options.events) options.events->Updated(node, /*to_host=*/true);
    tree.MoveToHost(node, place);
    host.Add({.block = block, .host = place, .to_host = true});
    ++offloads;
  } else {
    Lose(node);
  }
  At(block) = Block{};
  free.push_back(block);
  ++evictions;
}

// A free host block, else the least recently used one, whose content is dropped; kNone if there is
// none. What an earlier copy of this list wrote there is written over in order.
HostBlockId KvCache::Impl::TakeHostBlock() {
  const HostBlockId free_one = host.Take();
  const NodeId oldest = tree.oldest_on_host();
  if (free_one != kNone || oldest == kNone) return free_one;
  const HostBlockId place = tree.At(oldest).host;
  Lose(oldest);
  return place;
}

void KvCache::Impl::Lose(NodeId node) {
  if (options.events) options.events->Removed(node);
  tree.Erase(node);
}

// A free block, referenced; there is one available.
BlockId KvCache::Impl::TakeFree() {
  if (free.empty()) EvictOldest();
  const BlockId block = free.back();
  free.pop_back();
  Reference(block);
  return block;
}

// The content of a node of the host lies in `block` from now on, which is referenced and private.
NodeId KvCache::Impl::TakeOver(NodeId on_host, BlockId block) {
  tree.Hold(on_host);
  host.Leave(tree.At(on_host).host);
  tree.MoveToDevice(on_host, block);
  if (options.events) options.events->Updated(on_host, /*to_host=*/false);
  return on_host;
}

void KvCache::Onboard(std::span<const NodeId> on_host, std::vector<BlockId>& blocks) {
  Impl& impl = *impl_;
  TANDEM_CHECK(std::ssize(on_host) <= AvailableBlocks(),
               std::to_string(on_host.size()) + " blocks to bring back, " +
                   std::to_string(AvailableBlocks()) + " available");
  for (const NodeId node : on_host) {
    const BlockId block = impl.TakeFree();
    impl.host.Add({.block = block, .host = impl.tree.At(node).host, .to_host = false});
    impl.At(block).node = impl.TakeOver(node, block);
    impl.copied.push_back(node);  // with the match's hold
    ++impl.onboards;
    blocks.push_back(block);
  }
}

void KvCache::CopyFromHost(NodeId partial_on_host, BlockId to) {
  impl_->host.Add({.block = to, .host = impl_->tree.At(partial_on_host).host, .to_host = false});
  impl_->copied.push_back(partial_on_host);  // with the match's hold
  ++impl_->onboards;
}

void KvCache::MoveHostCopies(std::vector<HostCopy>& copies) {
  impl_->host.MoveCopies(copies);
  for (const NodeId node : impl_->copied) impl_->tree.Unhold(node);
  impl_->copied.clear();
}

// ---- Windows ----

// The longest prefix of whole blocks so that those which the next token sees have their window
// blocks; the part of a block after it only if it is the tree's longest one and has its own.
KvCache::Impl::Found KvCache::Impl::Usable(std::span<const int32_t> tokens,
                                           std::string_view key) const {
  int32_t visited = 0;
  int32_t first_held = 0;  // all visited blocks from here on have theirs
  int32_t usable = 0;
  Found found = Walk(tokens, key, [&](NodeId node) {
    ++visited;
    if (!HasWindow(tree.At(node).block)) first_held = visited;
    if (first_held <= FirstWindowBlock(visited * options.block_tokens)) usable = visited;
  });
  if (usable < found.whole ||
      (found.next.tokens > 0 && !HasWindow(tree.At(found.next.block).block))) {
    found.next = {};
  }
  found.whole = usable;
  return found;
}

WindowBlockId KvCache::Impl::ReferenceWindow(BlockId block) {
  const WindowBlockId window = At(block).window;
  ++At(block).window_holders;
  windows.Reference(window);
  return window;
}

bool KvCache::has_windows() const { return impl_->options.window_tokens > 0; }

int32_t KvCache::FirstWindowBlock(int32_t position) const {
  return impl_->FirstWindowBlock(position);
}

WindowBlockId KvCache::WindowOf(BlockId block) const { return impl_->At(block).window; }

void KvCache::TakeWindows(std::span<const BlockId> blocks, std::vector<WindowBlockId>& windows) {
  Impl& impl = *impl_;
  for (const BlockId block : blocks) {
    TANDEM_CHECK(!impl.HasWindow(block),
                 "block " + std::to_string(block) + " has a window block already");
    BlockId evicted_from = kNone;
    const WindowBlockId window = impl.windows.Take(block, evicted_from);
    if (evicted_from != kNone) impl.At(evicted_from).window = kNone;
    impl.At(block).window = window;
    ++impl.At(block).window_holders;
    windows.push_back(window);
  }
}

void KvCache::ReleaseWindows(std::span<const BlockId> blocks,
                             std::span<const WindowBlockId> windows) {
  Impl& impl = *impl_;
  TANDEM_CHECK(blocks.size() == windows.size(), "a window block each");
  for (const BlockId block : blocks) --impl.At(block).window_holders;
  for (const WindowBlockId window : windows) {
    const BlockId owner = impl.windows.OwnerOf(window);
    const bool in_tree = owner != kNone && impl.InTree(owner);
    if (impl.windows.Unreference(window, in_tree) && owner != kNone) impl.At(owner).window = kNone;
  }
}

void KvCache::MoveMappings(std::vector<WindowMapping>& mappings) {
  impl_->windows.MoveMappings(mappings);
}

// The tree's block takes over the window block of a private one with the same content, where it has
// lost its own. Whoever has a window block for the tree's reads it there.
void KvCache::Impl::LeaveWindowToTree(BlockId block, BlockId other) {
  const WindowBlockId window = At(block).window;
  if (At(other).window_holders > 0 || window == kNone || HasWindow(other)) return;
  At(block).window = kNone;
  At(other).window = window;
  windows.Move(window, other);
}

// ---- Prefixes ----

KvCache::KvCache(const KvCacheOptions& options) {
  TANDEM_CHECK(options.num_blocks >= 0 && options.block_tokens > 0,
               std::to_string(options.num_blocks) + " blocks of " +
                   std::to_string(options.block_tokens) + " tokens");
  TANDEM_CHECK(options.num_host_blocks == 0 || options.window_tokens == 0,
               "window blocks are not offloaded");
  impl_ = std::make_unique<Impl>(options);
}

KvCache::~KvCache() = default;

int32_t KvCache::block_tokens() const { return impl_->options.block_tokens; }

int32_t KvCache::AvailableBlocks() const {
  return static_cast<int32_t>(impl_->free.size()) + impl_->tree.num_evictable();
}

PrefixMatch KvCache::Match(std::span<const int32_t> tokens, std::string_view key) {
  Impl& impl = *impl_;
  PrefixMatch match;
  match.blocks.reserve(tokens.size() / static_cast<size_t>(block_tokens()));
  bool draft_follows = true;
  const auto extend = [&](NodeId node, int32_t usable) {
    const int32_t draft_usable = std::min(impl.tree.At(node).draft_tokens, usable);
    match.computed[kTarget] += usable;
    if (draft_follows) match.computed[kDraft] += draft_usable;
    draft_follows = draft_follows && draft_usable == usable;
    impl.HoldWhereItLies(node);
  };
  std::optional<Impl::Found> usable;
  if (has_windows()) usable = impl.Usable(tokens, key);
  Impl::Found found = impl.Walk(tokens, key, [&](NodeId node) {
    if (usable && std::ssize(match.blocks) == usable->whole) return;
    const PrefixTree::Node& found_node = impl.tree.At(node);
    if (found_node.on_host()) {
      match.on_host.push_back(node);
    } else {
      match.blocks.push_back(found_node.block);
    }
    extend(node, block_tokens());
  });
  if (usable) found = *usable;
  if (found.next.tokens > 0) {
    const NodeId next = found.next.block;
    match.partial_source = impl.tree.At(next).block;
    if (impl.tree.At(next).on_host()) match.partial_on_host = next;
    match.partial_tokens = found.next.tokens;
    extend(next, found.next.tokens);
  }
  if (usable) {
    match.first_window = std::min(FirstWindowBlock(found.whole * block_tokens()), found.whole);
    for (const BlockId block : std::span(match.blocks).subspan(Index(match.first_window))) {
      match.windows.push_back(impl.ReferenceWindow(block));
    }
    if (match.partial_source >= 0) match.source_window = impl.ReferenceWindow(match.partial_source);
  }
  return match;
}

int32_t KvCache::PeekMatch(std::span<const int32_t> tokens, std::string_view key) const {
  const Impl::Found found =
      has_windows() ? impl_->Usable(tokens, key) : impl_->Walk(tokens, key, [](NodeId) {});
  return found.whole * block_tokens() + found.next.tokens;
}

void KvCache::DropPartial(PrefixMatch& match) {
  if (match.partial_tokens == 0) return;
  if (match.partial_on_host >= 0) {
    impl_->tree.Unhold(match.partial_on_host);
  } else {
    const std::span source(&match.partial_source, 1);
    if (match.source_window >= 0) ReleaseWindows(source, std::span(&match.source_window, 1));
    Release(source);
  }
  match.partial_source = match.partial_on_host = match.source_window = -1;
  match.computed[kTarget] -= match.partial_tokens;
  match.computed[kDraft] = std::min(match.computed[kTarget], match.computed[kDraft]);
  match.partial_tokens = 0;
}

void KvCache::Drop(PrefixMatch& match) {
  DropPartial(match);
  ReleaseWindows(std::span(match.blocks).subspan(Index(match.first_window), match.windows.size()),
                 match.windows);
  for (const NodeId node : match.on_host) impl_->tree.Unhold(node);
  Release(match.blocks);
  match = {};
}

void KvCache::CountLookup(int32_t prompt_tokens, int32_t hit_tokens) {
  impl_->lookup_tokens += prompt_tokens;
  impl_->hit_tokens += hit_tokens;
}

bool KvCache::Allocate(int32_t count, std::vector<BlockId>& blocks) {
  if (count > AvailableBlocks()) return false;
  for (int32_t i = 0; i < count; ++i) blocks.push_back(impl_->TakeFree());
  return true;
}

void KvCache::Publish(std::span<const int32_t> tokens, std::span<const BlockId> blocks,
                      const ComputedLengths& computed, const ComputedLengths& published,
                      std::string_view key) {
  Impl& impl = *impl_;
  if (!impl.options.enable_reuse) return;
  const int32_t size = block_tokens();
  const auto known = static_cast<int32_t>(tokens.size());
  const int32_t whole = std::min(known, computed[kTarget]) / size;
  TANDEM_CHECK(Index(whole) <= blocks.size(), std::to_string(whole) + " blocks are computed, " +
                                                  std::to_string(blocks.size()) + " are there");
  // The blocks published by earlier calls are in the tree; it may continue below a block that the
  // caller holds another copy of.
  const bool draft_moved = computed[kDraft] > published[kDraft];
  const int32_t stands =
      draft_moved ? std::min(published[kTarget], published[kDraft]) : published[kTarget];
  int32_t first = std::min(stands / size, whole);
  while (first > 0 && !impl.InTree(blocks[Index(first - 1)])) --first;
  if (first == whole) return;
  NodeId parent =
      first > 0 ? impl.At(blocks[Index(first - 1)]).node : impl.tree.FindOrMakeRoot(key);
  for (int32_t i = first; i < whole; ++i) {
    const BlockId block = blocks[Index(i)];
    TANDEM_CHECK(impl.At(block).references > 0,
                 "block " + std::to_string(block) + " is published without a reference");
    if (!impl.InTree(block)) {
      const auto content = tokens.subspan(Index(i * size), Index(size));
      const NodeId other = impl.tree.Find(parent, content);
      if (other != kNone && !impl.tree.At(other).on_host()) {
        // Private: the blocks after it can still be children of the other one.
        const bool is_new = i >= published[kTarget] / size;
        if (is_new) impl.LeaveWindowToTree(block, impl.tree.At(other).block);
        parent = other;
        continue;
      }
      if (other != kNone) {
        impl.At(block).node = impl.TakeOver(other, block);
        impl.tree.SetDraftTokens(other, 0);  // those of the host's content
      } else {
        const NodeId inserted = impl.tree.Insert(parent, content, block);
        impl.At(block).node = inserted;
        if (impl.options.events) impl.options.events->Stored(inserted, parent, key, content);
      }
    }
    const NodeId node = impl.At(block).node;
    const int32_t draft_tokens = std::clamp(computed[kDraft] - i * size, 0, size);
    impl.tree.SetDraftTokens(node, std::max(impl.tree.At(node).draft_tokens, draft_tokens));
    parent = node;
  }
}

void KvCache::Release(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) impl_->Unreference(block);
}

KvCacheStats KvCache::Stats() const {
  const Impl& impl = *impl_;
  KvCacheStats stats;
  stats.total_blocks = impl.options.num_blocks;
  stats.block_tokens = impl.options.block_tokens;
  stats.free_blocks = static_cast<int32_t>(impl.free.size());
  stats.referenced_blocks = impl.num_referenced;
  stats.cached_blocks = stats.total_blocks - stats.free_blocks - stats.referenced_blocks;
  stats.lookup_tokens = impl.lookup_tokens;
  stats.hit_tokens = impl.hit_tokens;
  stats.evictions = impl.evictions;
  stats.total_window_blocks = impl.options.num_window_blocks;
  stats.referenced_window_blocks = impl.windows.num_referenced();
  stats.total_host_blocks = impl.host.size();
  stats.used_host_blocks = impl.host.num_used();
  stats.offloads = impl.offloads;
  stats.onboards = impl.onboards;
  stats.used_host_bytes = stats.used_host_blocks * impl.options.block_bytes;
  stats.offloaded_bytes = stats.offloads * impl.options.block_bytes;
  stats.onboarded_bytes = stats.onboards * impl.options.block_bytes;
  return stats;
}

void KvCache::CheckIntegrity() const {
  const Impl& impl = *impl_;
  impl.tree.CheckIntegrity();
  int32_t referenced = 0;
  int32_t in_tree = 0;
  int32_t unused = 0;
  for (BlockId block = 0; block < impl.options.num_blocks; ++block) {
    const Block& at = impl.At(block);
    referenced += at.references > 0 ? 1 : 0;
    in_tree += impl.InTree(block) ? 1 : 0;
    unused += !impl.InTree(block) && at.references == 0 ? 1 : 0;
    if (!impl.InTree(block)) continue;
    CheckCount(impl.tree.At(at.node).block, block, "block of a block's node");
    TANDEM_CHECK(at.references == 0 || impl.tree.At(at.node).holders > 0,
                 "the node of a referenced block is not held");
  }
  std::vector<int32_t> holders(Index(impl.options.num_host_blocks));
  int32_t on_host = 0;
  impl.tree.ForEach([&](NodeId, const PrefixTree::Node& node) {
    if (!node.on_host()) return;
    ++on_host;
    CheckCount(++holders[Index(node.host)], 1, "nodes in a block of the host");
  });
  CheckCount(referenced, impl.num_referenced, "referenced blocks");
  CheckCount(in_tree, impl.tree.size() - on_host, "blocks in the tree");
  CheckCount(on_host, impl.host.num_used(), "blocks of the host in use");
  CheckCount(unused, static_cast<int64_t>(impl.free.size()), "free blocks");
  for (const BlockId block : impl.free)
    CheckCount(impl.At(block).references, 0, "references of a free block");
  impl.CheckWindows();
}

void KvCache::Impl::CheckWindows() const {
  windows.CheckIntegrity();
  for (WindowBlockId window = 0; window < windows.size(); ++window) {
    const BlockId owner = windows.OwnerOf(window);
    if (owner == kNone) continue;
    CheckCount(At(owner).window, window, "window block of a window block's owner");
    TANDEM_CHECK(windows.ReferencesOf(window) > 0 || InTree(owner),
                 "an unreferenced window block's owner is not in the tree");
  }
}

}  // namespace tandem
