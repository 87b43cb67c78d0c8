// EvictionList: ids from the least to the most recently used. Every change is O(1) and allocates
// nothing. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

class EvictionList {
 public:
  static constexpr int32_t kNone = -1;  // no id

  // Empty; ids are below num_ids.
  explicit EvictionList(int32_t num_ids) : nodes_(static_cast<size_t>(num_ids)) {}

  // `id` is not in the list.
  void PushNewest(int32_t id) {
    At(id) = {.older = newest_};
    (newest_ != kNone ? At(newest_).newer : oldest_) = id;
    newest_ = id;
    ++size_;
  }
  // `id` is in the list.
  void Remove(int32_t id) {
    const Node node = At(id);
    (node.older != kNone ? At(node.older).newer : oldest_) = node.newer;
    (node.newer != kNone ? At(node.newer).older : newest_) = node.older;
    --size_;
  }

  int32_t size() const { return size_; }
  int32_t oldest() const { return oldest_; }
  // The id after `id`, which is in the list.
  int32_t NewerThan(int32_t id) const { return nodes_[static_cast<size_t>(id)].newer; }

 private:
  struct Node {
    int32_t older = kNone;
    int32_t newer = kNone;
  };
  Node& At(int32_t id) { return nodes_[static_cast<size_t>(id)]; }

  std::vector<Node> nodes_;
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
  int32_t size_ = 0;
};

}  // namespace tandem
