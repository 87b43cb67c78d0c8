// PrefixIndex: finds the node that continues a prefix. Holds each indexed node's parent and
// tokens, ordered by (parent, tokens): one search gives both equality and the longest common
// prefix, and tokens are always compared, so no hash can confuse two prompts. Owned by KvCache;
// engine thread only. Nothing allocates after construction.
//
// The parent of a prompt's first block is a root: any negative number. Prompts under different
// roots share nothing.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <set>
#include <span>
#include <vector>

namespace tandem {

class PrefixIndex {
 public:
  static constexpr int32_t kNone = -1;  // no block

  PrefixIndex(int32_t num_blocks, int32_t block_tokens);

  // `tokens`: [block_tokens]. The block must not be in the index, nor another with the same
  // content.
  void Insert(int32_t block, int32_t parent, std::span<const int32_t> tokens);
  void Erase(int32_t block);

  // The child of `parent` with exactly these tokens, or kNone.
  int32_t Find(int32_t parent, std::span<const int32_t> tokens) const;

  struct Common {
    int32_t block = kNone;
    int32_t tokens = 0;
  };
  // The child of `parent` that shares the most leading tokens with `tokens` (at most block_tokens
  // of them).
  Common FindCommon(int32_t parent, std::span<const int32_t> tokens) const;

  int32_t size() const { return static_cast<int32_t>(order_.size()); }

 private:
  struct Key {
    int32_t parent;
    std::span<const int32_t> tokens;
  };
  struct Less {
    using is_transparent = void;
    const PrefixIndex* index;
    bool operator()(int32_t a, int32_t b) const {
      return Compare(index->KeyOf(a), index->KeyOf(b));
    }
    bool operator()(int32_t a, const Key& b) const { return Compare(index->KeyOf(a), b); }
    bool operator()(const Key& a, int32_t b) const { return Compare(a, index->KeyOf(b)); }
  };

  // Memory for the tree's nodes, all of one size, allocated once.
  class NodePool : public std::pmr::memory_resource {
   public:
    explicit NodePool(int32_t num_nodes);

   private:
    static constexpr size_t kNodeBytes = 64;
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* memory, size_t bytes, size_t alignment) override;
    bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override;

    struct alignas(kNodeBytes) Node {
      std::byte bytes[kNodeBytes];
    };
    std::vector<Node> nodes_;
    std::vector<void*> free_;
  };

  static bool Compare(const Key& a, const Key& b);
  Key KeyOf(int32_t block) const;

  const size_t block_tokens_;
  std::vector<int32_t> parents_;  // [num_blocks]
  std::vector<int32_t> tokens_;   // [num_blocks, block_tokens]
  NodePool pool_;
  std::pmr::set<int32_t, Less> order_;
};

}  // namespace tandem
