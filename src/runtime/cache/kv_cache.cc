#include "runtime/cache/kv_cache.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/check.h"
#include "runtime/cache/check_count.h"
#include "runtime/cache/eviction_list.h"
#include "runtime/cache/prefix_index.h"

namespace tandem {
namespace {

constexpr BlockId kNone = PrefixIndex::kNone;
// Root of the empty key's tree. Each other key has its own root: -2, -3 and so on.
constexpr BlockId kDefaultRoot = -1;
constexpr size_t kTarget = static_cast<size_t>(ModelIndex::kTarget);
constexpr size_t kDraft = static_cast<size_t>(ModelIndex::kDraft);

size_t Index(BlockId block) { return static_cast<size_t>(block); }
constexpr BlockId kNoRoot = 0;
bool IsRoot(BlockId parent) { return parent < 0; }

// A tree node is a block: the tree needs no separate ids.
struct Block {
  int32_t references = 0;
  bool in_tree = false;
  // The other members are valid while the block is in the tree.
  BlockId parent = kDefaultRoot;
  int32_t children = 0;
  int32_t active_children = 0;  // children that are active(): they hold this block in the tree
  int32_t draft_tokens = 0;     // leading tokens the draft has computed; the target has all of them
  // Its own window block. Meaningful whether in the tree or not.
  WindowBlockId window = kNone;
  int32_t window_holders = 0;  // sequences that have a window block for this block, owned or not

  // In use, or an ancestor of a block in use. An ancestor of a block in use can still be inactive:
  // the sequence below kept its own copy of this content (see Publish).
  bool active() const { return references > 0 || active_children > 0; }
};

}  // namespace

// Invariants, in addition to the obvious ones:
// - the eviction list holds exactly the blocks in the tree that are not active;
// - in that list a parent is newer than its children (it becomes inactive when its last active
// child does, or later), so the oldest entry is always a leaf and the least recently used block:
// eviction is O(1);
// - a key other than the empty one has a root exactly while its tree holds blocks.
struct KvCache::Impl {
  explicit Impl(const KvCacheOptions& cache_options)
      : options(cache_options),
        blocks(Index(cache_options.num_blocks)),
        index(cache_options.num_blocks, cache_options.block_tokens),
        evictable(cache_options.num_blocks),
        windows(cache_options.num_window_blocks) {
    free.reserve(blocks.size());
    for (BlockId block = options.num_blocks - 1; block >= 0; --block) free.push_back(block);
  }

  struct Found {
    int32_t whole = 0;         // blocks
    PrefixIndex::Common next;  // the part of the next block that is there
  };

  Block& At(BlockId block) {
    TANDEM_CHECK(block >= 0 && block < options.num_blocks,
                 "block " + std::to_string(block) + " of " + std::to_string(options.num_blocks));
    return blocks[Index(block)];
  }
  const Block& At(BlockId block) const { return const_cast<Impl*>(this)->At(block); }

  template <typename Visit>
  Found Walk(std::span<const int32_t> tokens, std::string_view key, Visit visit) const;

  // The root of a key's tree; kNoRoot if nothing was published under it.
  BlockId FindRoot(std::string_view key) const;
  BlockId FindOrMakeRoot(std::string_view key);
  void AddChild(BlockId parent);
  void RemoveChild(BlockId parent);

  void Reference(BlockId block);
  void Unreference(BlockId block);
  // A block in the tree has just become active (inactive): removes it from (adds it to) the
  // eviction list, with the ancestors that became so with it.
  void BecameActive(BlockId block);
  void BecameInactive(BlockId block);

  // How far a prefix that the tree holds can be used: as far as the windows reach.
  Found Usable(std::span<const int32_t> tokens, std::string_view key) const;
  bool HasWindow(BlockId block) const { return At(block).window != kNone; }
  int32_t FirstWindowBlock(int32_t position) const {
    return std::max(position - options.window_tokens + 1, 0) / options.block_tokens;
  }
  WindowBlockId ReferenceWindow(BlockId block);

  void InsertIntoTree(BlockId block, BlockId parent, std::span<const int32_t> tokens);
  void EvictOldest();

  struct Root {
    std::string key;
    int32_t children = 0;
  };
  struct KeyHash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };

  const KvCacheOptions options;
  std::vector<Block> blocks;
  std::unordered_map<std::string, BlockId, KeyHash, std::equal_to<>> root_of_key;
  std::unordered_map<BlockId, Root> roots;  // except the empty key's
  BlockId last_root = kDefaultRoot;
  PrefixIndex index;
  std::vector<BlockId> free;
  EvictionList evictable;
  int32_t num_referenced = 0;  // blocks with references
  int64_t lookup_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t evictions = 0;
  WindowBlocks windows;
};

// Calls visit(block) for each whole block of the longest prefix that leaves a token to compute.
template <typename Visit>
KvCache::Impl::Found KvCache::Impl::Walk(std::span<const int32_t> tokens, std::string_view key,
                                         Visit visit) const {
  Found found;
  if (!options.enable_reuse || tokens.empty()) return found;
  BlockId parent = FindRoot(key);
  if (parent == kNoRoot) return found;
  const auto block_tokens = static_cast<size_t>(options.block_tokens);
  std::span<const int32_t> rest = tokens.first(tokens.size() - 1);
  while (rest.size() >= block_tokens) {
    const BlockId block = index.Find(parent, rest.first(block_tokens));
    if (block == kNone) break;
    visit(block);
    parent = block;
    ++found.whole;
    rest = rest.subspan(block_tokens);
  }
  if (!rest.empty()) found.next = index.FindCommon(parent, rest);
  return found;
}

BlockId KvCache::Impl::FindRoot(std::string_view key) const {
  if (key.empty()) return kDefaultRoot;
  const auto found = root_of_key.find(key);
  return found == root_of_key.end() ? kNoRoot : found->second;
}

BlockId KvCache::Impl::FindOrMakeRoot(std::string_view key) {
  BlockId root = FindRoot(key);
  if (root != kNoRoot) return root;
  // Numbers repeat after two billion keys; one still in use is skipped.
  do {
    last_root = last_root == std::numeric_limits<BlockId>::min() ? kDefaultRoot - 1 : last_root - 1;
  } while (roots.contains(last_root));
  root = last_root;
  roots[root].key = key;
  root_of_key.emplace(key, root);
  return root;
}

void KvCache::Impl::AddChild(BlockId parent) {
  if (parent == kDefaultRoot) return;
  ++(IsRoot(parent) ? roots.at(parent).children : At(parent).children);
}

void KvCache::Impl::RemoveChild(BlockId parent) {
  if (parent == kDefaultRoot) return;
  if (!IsRoot(parent)) {
    --At(parent).children;
    return;
  }
  const auto root = roots.find(parent);
  if (--root->second.children > 0) return;
  root_of_key.erase(root->second.key);
  roots.erase(root);
}

void KvCache::Impl::BecameActive(BlockId block) {
  while (true) {
    evictable.Remove(block);
    const BlockId parent = At(block).parent;
    if (IsRoot(parent)) return;
    const bool parent_was_active = At(parent).active();
    ++At(parent).active_children;
    if (parent_was_active) return;
    block = parent;
  }
}

void KvCache::Impl::BecameInactive(BlockId block) {
  while (true) {
    evictable.PushNewest(block);
    const BlockId parent = At(block).parent;
    if (IsRoot(parent)) return;
    --At(parent).active_children;
    if (At(parent).active()) return;
    block = parent;
  }
}

void KvCache::Impl::Reference(BlockId block) {
  Block& node = At(block);
  const bool was_active = node.active();
  if (node.references++ == 0) ++num_referenced;
  if (node.in_tree && !was_active) BecameActive(block);
}

void KvCache::Impl::Unreference(BlockId block) {
  Block& node = At(block);
  TANDEM_CHECK(node.references > 0, "block " + std::to_string(block) + " is released too often");
  if (--node.references > 0) return;
  --num_referenced;
  if (!node.in_tree) {
    TANDEM_CHECK(node.window == kNone && node.window_holders == 0,
                 "a free block has a window block");
    free.push_back(block);
  } else if (!node.active()) {
    BecameInactive(block);
  }
}

void KvCache::Impl::InsertIntoTree(BlockId block, BlockId parent, std::span<const int32_t> tokens) {
  index.Insert(block, parent, tokens);
  Block& node = At(block);
  node.in_tree = true;
  node.parent = parent;
  node.children = 0;
  node.active_children = 0;
  node.draft_tokens = 0;
  AddChild(parent);
  if (IsRoot(parent)) return;
  const bool parent_was_active = At(parent).active();
  ++At(parent).active_children;
  if (!parent_was_active) BecameActive(parent);
}

void KvCache::Impl::EvictOldest() {
  const BlockId block = evictable.oldest();
  Block& node = At(block);
  // It may be referenced, by a sequence that has its own copy of the block.
  if (node.window != kNone) windows.Disown(node.window);
  TANDEM_CHECK(node.children == 0 && node.references == 0,
               "evicting block " + std::to_string(block) + " with " +
                   std::to_string(node.children) + " children and " +
                   std::to_string(node.references) + " references");
  evictable.Remove(block);
  index.Erase(block);
  RemoveChild(node.parent);
  node = Block{};
  free.push_back(block);
  ++evictions;
}

// ---- Windows ----

// The longest prefix of whole blocks so that those which the next token sees have their window
// blocks; the part of a block after it only if it is the tree's longest one and has its own.
KvCache::Impl::Found KvCache::Impl::Usable(std::span<const int32_t> tokens,
                                           std::string_view key) const {
  int32_t visited = 0;
  int32_t first_held = 0;  // all visited blocks from here on have theirs
  int32_t usable = 0;
  Found found = Walk(tokens, key, [&](BlockId block) {
    ++visited;
    if (!HasWindow(block)) first_held = visited;
    if (first_held <= FirstWindowBlock(visited * options.block_tokens)) usable = visited;
  });
  if (usable < found.whole || (found.next.tokens > 0 && !HasWindow(found.next.block))) {
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
    const bool in_tree = owner != kNone && impl.At(owner).in_tree;
    if (impl.windows.Unreference(window, in_tree) && owner != kNone) impl.At(owner).window = kNone;
  }
}

void KvCache::MoveMappings(std::vector<WindowMapping>& mappings) {
  impl_->windows.MoveMappings(mappings);
}

KvCache::KvCache(const KvCacheOptions& options) {
  TANDEM_CHECK(options.num_blocks >= 0 && options.block_tokens > 0,
               std::to_string(options.num_blocks) + " blocks of " +
                   std::to_string(options.block_tokens) + " tokens");
  impl_ = std::make_unique<Impl>(options);
}

KvCache::~KvCache() = default;

int32_t KvCache::block_tokens() const { return impl_->options.block_tokens; }

int32_t KvCache::AvailableBlocks() const {
  return static_cast<int32_t>(impl_->free.size()) + impl_->evictable.size();
}

PrefixMatch KvCache::Match(std::span<const int32_t> tokens, std::string_view key) {
  Impl& impl = *impl_;
  PrefixMatch match;
  match.blocks.reserve(tokens.size() / static_cast<size_t>(block_tokens()));
  bool draft_follows = true;
  const auto extend = [&](BlockId block, int32_t usable) {
    const int32_t draft_usable = std::min(impl.At(block).draft_tokens, usable);
    match.computed[kTarget] += usable;
    if (draft_follows) match.computed[kDraft] += draft_usable;
    draft_follows = draft_follows && draft_usable == usable;
    impl.Reference(block);
  };
  std::optional<Impl::Found> usable;
  if (has_windows()) usable = impl.Usable(tokens, key);
  Impl::Found found = impl.Walk(tokens, key, [&](BlockId block) {
    if (usable && std::ssize(match.blocks) == usable->whole) return;
    match.blocks.push_back(block);
    extend(block, block_tokens());
  });
  if (usable) found = *usable;
  if (found.next.tokens > 0) {
    match.partial_source = found.next.block;
    match.partial_tokens = found.next.tokens;
    extend(found.next.block, found.next.tokens);
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
      has_windows() ? impl_->Usable(tokens, key) : impl_->Walk(tokens, key, [](BlockId) {});
  return found.whole * block_tokens() + found.next.tokens;
}

void KvCache::CountLookup(int32_t prompt_tokens, int32_t hit_tokens) {
  impl_->lookup_tokens += prompt_tokens;
  impl_->hit_tokens += hit_tokens;
}

bool KvCache::Allocate(int32_t count, std::vector<BlockId>& blocks) {
  Impl& impl = *impl_;
  if (count > AvailableBlocks()) return false;
  for (int32_t i = 0; i < count; ++i) {
    if (impl.free.empty()) impl.EvictOldest();
    const BlockId block = impl.free.back();
    impl.free.pop_back();
    impl.Reference(block);
    blocks.push_back(block);
  }
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
  while (first > 0 && !impl.At(blocks[Index(first - 1)]).in_tree) --first;
  if (first == whole) return;
  BlockId parent = first > 0 ? blocks[Index(first - 1)] : impl.FindOrMakeRoot(key);
  for (int32_t i = first; i < whole; ++i) {
    const BlockId block = blocks[Index(i)];
    TANDEM_CHECK(impl.At(block).references > 0,
                 "block " + std::to_string(block) + " is published without a reference");
    if (!impl.At(block).in_tree) {
      const auto content = tokens.subspan(Index(i * size), Index(size));
      const BlockId other = impl.index.Find(parent, content);
      if (other != kNone) {  // private: the blocks after it can still be children of the other one
        const WindowBlockId window = impl.At(block).window;
        const bool is_new = i >= published[kTarget] / size;
        // Whoever has a window block for the other one reads it there.
        const bool unread = impl.At(other).window_holders == 0;
        if (is_new && unread && window != kNone && !impl.HasWindow(other)) {
          impl.At(block).window = kNone;
          impl.At(other).window = window;
          impl.windows.Move(window, other);
        }
        parent = other;
        continue;
      }
      impl.InsertIntoTree(block, parent, content);
    }
    const int32_t draft_tokens = std::clamp(computed[kDraft] - i * size, 0, size);
    impl.At(block).draft_tokens = std::max(impl.At(block).draft_tokens, draft_tokens);
    parent = block;
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
  return stats;
}

void KvCache::CheckIntegrity() const {
  const Impl& impl = *impl_;
  int32_t referenced = 0;
  int32_t in_tree = 0;
  int32_t evictable = 0;
  int32_t unused = 0;
  std::vector<int32_t> children(impl.blocks.size());
  std::vector<int32_t> active_children(impl.blocks.size());
  std::unordered_map<BlockId, int32_t> root_children;
  for (const Block& block : impl.blocks) {
    referenced += block.references > 0 ? 1 : 0;
    in_tree += block.in_tree ? 1 : 0;
    evictable += block.in_tree && !block.active() ? 1 : 0;
    unused += !block.in_tree && block.references == 0 ? 1 : 0;
    if (!block.in_tree) continue;
    if (IsRoot(block.parent)) {
      ++root_children[block.parent];
      continue;
    }
    TANDEM_CHECK(impl.At(block.parent).in_tree, "a parent is not in the tree");
    ++children[Index(block.parent)];
    active_children[Index(block.parent)] += block.active() ? 1 : 0;
  }
  root_children.erase(kDefaultRoot);
  CheckCount(static_cast<int64_t>(root_children.size()), static_cast<int64_t>(impl.roots.size()),
             "roots");
  CheckCount(static_cast<int64_t>(impl.root_of_key.size()), static_cast<int64_t>(impl.roots.size()),
             "keys");
  for (const auto& [root, count] : root_children) {
    CheckCount(count, impl.roots.at(root).children, "children of a root");
  }
  CheckCount(referenced, impl.num_referenced, "referenced blocks");
  CheckCount(in_tree, impl.index.size(), "blocks in the tree");
  CheckCount(evictable, impl.evictable.size(), "evictable blocks");
  CheckCount(unused, static_cast<int64_t>(impl.free.size()), "free blocks");
  for (size_t i = 0; i < impl.blocks.size(); ++i) {
    if (!impl.blocks[i].in_tree) continue;
    CheckCount(children[i], impl.blocks[i].children, "children of a block");
    CheckCount(active_children[i], impl.blocks[i].active_children, "active children of a block");
  }
  for (const BlockId block : impl.free)
    CheckCount(impl.At(block).references, 0, "references of a free block");

  impl.windows.CheckIntegrity();
  for (WindowBlockId window = 0; window < impl.windows.size(); ++window) {
    const BlockId owner = impl.windows.OwnerOf(window);
    if (owner == kNone) continue;
    CheckCount(impl.At(owner).window, window, "window block of a window block's owner");
    TANDEM_CHECK(impl.windows.ReferencesOf(window) > 0 || impl.At(owner).in_tree,
                 "an unreferenced window block's owner is not in the tree");
  }

  std::vector<int32_t> age(impl.blocks.size(), -1);  // place in the eviction list, oldest first
  int32_t listed = 0;
  for (BlockId block = impl.evictable.oldest(); block != kNone && listed <= evictable;
       block = impl.evictable.NewerThan(block)) {
    age[Index(block)] = listed++;
  }
  CheckCount(listed, evictable, "length of the eviction list");
  for (const Block& block : impl.blocks) {
    const auto self = static_cast<size_t>(&block - impl.blocks.data());
    if (age[self] < 0 || IsRoot(block.parent) || age[Index(block.parent)] < 0) continue;
    TANDEM_CHECK(age[self] < age[Index(block.parent)],
                 "a parent would be evicted before its child");
  }
}

}  // namespace tandem
