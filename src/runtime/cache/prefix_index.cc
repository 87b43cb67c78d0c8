#include "runtime/cache/prefix_index.h"

#include <algorithm>

#include "base/check.h"

namespace tandem {

PrefixIndex::NodePool::NodePool(int32_t num_nodes) : nodes_(static_cast<size_t>(num_nodes)) {
  free_.reserve(nodes_.size());
  for (Node& node : nodes_) free_.push_back(&node);
}

void* PrefixIndex::NodePool::do_allocate(size_t bytes, size_t alignment) {
  TANDEM_CHECK(bytes <= kNodeBytes && alignment <= kNodeBytes && !free_.empty(),
               "a tree node larger than planned, or more nodes than blocks");
  void* const memory = free_.back();
  free_.pop_back();
  return memory;
}

void PrefixIndex::NodePool::do_deallocate(void* memory, size_t, size_t) { free_.push_back(memory); }

bool PrefixIndex::NodePool::do_is_equal(const std::pmr::memory_resource& other) const noexcept {
  return this == &other;
}

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_tokens)
    : block_tokens_(static_cast<size_t>(block_tokens)),
      parents_(static_cast<size_t>(num_blocks), kNone),
      tokens_(static_cast<size_t>(num_blocks) * block_tokens_),
      pool_(num_blocks),
      order_(Less{this}, &pool_) {}

bool PrefixIndex::Compare(const Key& a, const Key& b) {
  if (a.parent != b.parent) return a.parent < b.parent;
  return std::lexicographical_compare(a.tokens.begin(), a.tokens.end(), b.tokens.begin(),
                                      b.tokens.end());
}

PrefixIndex::Key PrefixIndex::KeyOf(int32_t block) const {
  const auto i = static_cast<size_t>(block);
  return {parents_[i], {tokens_.data() + i * block_tokens_, block_tokens_}};
}

void PrefixIndex::Insert(int32_t block, int32_t parent, std::span<const int32_t> tokens) {
  const auto i = static_cast<size_t>(block);
  TANDEM_CHECK(tokens.size() == block_tokens_, "only whole blocks are indexed");
  parents_[i] = parent;
  std::copy(tokens.begin(), tokens.end(),
            tokens_.begin() + static_cast<ptrdiff_t>(i * block_tokens_));
  const bool is_new = order_.insert(block).second;
  TANDEM_CHECK(is_new, "the index has this content already");
}

void PrefixIndex::Erase(int32_t block) {
  const size_t erased = order_.erase(block);
  TANDEM_CHECK(erased == 1, "the block is not in the index");
}

int32_t PrefixIndex::Find(int32_t parent, std::span<const int32_t> tokens) const {
  const auto found = order_.find(Key{parent, tokens});
  return found == order_.end() ? kNone : *found;
}

// In sorted order, the string that shares the longest prefix with a query is next to its position.
PrefixIndex::Common PrefixIndex::FindCommon(int32_t parent, std::span<const int32_t> tokens) const {
  const Key key{parent, tokens.first(std::min(tokens.size(), block_tokens_))};
  Common best;
  const auto offer = [&](int32_t block) {
    const Key other = KeyOf(block);
    if (other.parent != parent) return;
    const auto end =
        std::mismatch(key.tokens.begin(), key.tokens.end(), other.tokens.begin()).first;
    const auto common = static_cast<int32_t>(end - key.tokens.begin());
    if (common > best.tokens) best = {block, common};
  };
  const auto next = order_.lower_bound(key);
  if (next != order_.end()) offer(*next);
  if (next != order_.begin()) offer(*std::prev(next));
  return best;
}

}  // namespace tandem
