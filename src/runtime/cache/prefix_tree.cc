#include "runtime/cache/prefix_tree.h"

#include <limits>

#include "base/check.h"
#include "runtime/cache/check_count.h"

namespace tandem {
namespace {

// Root of the empty key's tree. Each other key has its own root: -2, -3 and so on.
constexpr NodeId kDefaultRoot = -1;

size_t Index(NodeId node) { return static_cast<size_t>(node); }

}  // namespace

PrefixTree::PrefixTree(int32_t max_nodes, int32_t block_tokens)
    : nodes_(Index(max_nodes)),
      in_use_(Index(max_nodes)),
      index_(max_nodes, block_tokens),
      on_device_(max_nodes),
      on_host_(max_nodes),
      last_root_(kDefaultRoot) {
  free_.reserve(nodes_.size());
  for (NodeId node = max_nodes - 1; node >= 0; --node) free_.push_back(node);
}

const PrefixTree::Node& PrefixTree::At(NodeId node) const {
  TANDEM_CHECK(node >= 0 && Index(node) < nodes_.size() && in_use_[Index(node)],
               std::to_string(node) + " is no node");
  return nodes_[Index(node)];
}

// ---- Keys ----

std::optional<NodeId> PrefixTree::FindRoot(std::string_view key) const {
  if (key.empty()) return kDefaultRoot;
  const auto found = root_of_key_.find(key);
  if (found == root_of_key_.end()) return std::nullopt;
  return found->second;
}

NodeId PrefixTree::FindOrMakeRoot(std::string_view key) {
  if (const std::optional<NodeId> root = FindRoot(key)) return *root;
  // Numbers repeat after two billion keys; one still in use is skipped.
  do {
    last_root_ = last_root_ == std::numeric_limits<NodeId>::min() ? kDefaultRoot - 1  //
                                                                  : last_root_ - 1;
  } while (roots_.contains(last_root_));
  roots_[last_root_].key = key;
  root_of_key_.emplace(key, last_root_);
  return last_root_;
}

void PrefixTree::AddChild(NodeId parent) {
  if (parent == kDefaultRoot) return;
  ++(IsRoot(parent) ? roots_.at(parent).children : Mutable(parent).children);
}

void PrefixTree::RemoveChild(NodeId parent) {
  if (parent == kDefaultRoot) return;
  if (!IsRoot(parent)) {
    --Mutable(parent).children;
    return;
  }
  const auto root = roots_.find(parent);
  if (--root->second.children > 0) return;
  root_of_key_.erase(root->second.key);
  roots_.erase(root);
}

// ---- Nodes ----

NodeId PrefixTree::Insert(NodeId parent, std::span<const int32_t> tokens, BlockId block) {
  TANDEM_CHECK(!free_.empty(), "more nodes than blocks");
  TANDEM_CHECK(IsRoot(parent) || !At(parent).on_host(), "a parent is on the host");
  const NodeId node = free_.back();
  free_.pop_back();
  in_use_[Index(node)] = true;
  nodes_[Index(node)] = {.parent = parent, .holders = 1, .block = block};
  index_.Insert(node, parent, tokens);
  AddChild(parent);
  if (IsRoot(parent)) return node;
  const bool parent_was_active = At(parent).active();
  ++Mutable(parent).active_children;
  if (!parent_was_active) BecameActive(parent);
  return node;
}

void PrefixTree::Erase(NodeId node) {
  const Node& erased = At(node);
  TANDEM_CHECK(erased.children == 0 && !erased.active(),
               "a node leaves with " + std::to_string(erased.children) + " children and " +
                   std::to_string(erased.holders) + " holders");
  ListOf(erased).Remove(node);
  index_.Erase(node);
  RemoveChild(erased.parent);
  in_use_[Index(node)] = false;
  free_.push_back(node);
}

void PrefixTree::Hold(NodeId node) {
  const bool was_active = At(node).active();
  ++Mutable(node).holders;
  if (!was_active) BecameActive(node);
}

void PrefixTree::Unhold(NodeId node) {
  TANDEM_CHECK(At(node).holders > 0, "node " + std::to_string(node) + " is released too often");
  --Mutable(node).holders;
  if (!At(node).active()) BecameInactive(node);
}

void PrefixTree::BecameActive(NodeId node) {
  while (true) {
    ListOf(At(node)).Remove(node);
    const NodeId parent = At(node).parent;
    if (IsRoot(parent)) return;
    const bool parent_was_active = At(parent).active();
    ++Mutable(parent).active_children;
    if (parent_was_active) return;
    node = parent;
  }
}

void PrefixTree::BecameInactive(NodeId node) {
  while (true) {
    ListOf(At(node)).PushNewest(node);
    const NodeId parent = At(node).parent;
    if (IsRoot(parent)) return;
    --Mutable(parent).active_children;
    if (At(parent).active()) return;
    node = parent;
  }
}

void PrefixTree::MoveToHost(NodeId node, HostBlockId host) {
  TANDEM_CHECK(node == oldest_on_device(), "only the oldest node moves to the host");
  on_device_.Remove(node);
  Mutable(node).block = kNone;
  Mutable(node).host = host;
  on_host_.PushNewest(node);
}

void PrefixTree::MoveToDevice(NodeId node, BlockId block) {
  const NodeId parent = At(node).parent;
  TANDEM_CHECK(At(node).on_host() && At(node).holders > 0, "only a held node leaves the host");
  TANDEM_CHECK(IsRoot(parent) || !At(parent).on_host(), "a node leaves the host before its parent");
  Mutable(node).host = kNone;
  Mutable(node).block = block;
}

// ---- Integrity ----

void PrefixTree::CheckIntegrity() const {
  std::vector<int32_t> children(nodes_.size());
  std::vector<int32_t> active_children(nodes_.size());
  int32_t count = 0;
  ForEach([&](NodeId, const Node& node) {
    ++count;
    TANDEM_CHECK((node.block == kNone) != (node.host == kNone), "a node lies in two places");
    if (IsRoot(node.parent)) return;
    TANDEM_CHECK(node.on_host() || !At(node.parent).on_host(),
                 "a node on the device has a parent on the host");
    ++children[Index(node.parent)];
    active_children[Index(node.parent)] += node.active() ? 1 : 0;
  });
  CheckCount(count, size(), "nodes");
  CheckCount(std::ssize(nodes_) - count, std::ssize(free_), "free nodes");
  ForEach([&](NodeId id, const Node& node) {
    CheckCount(children[Index(id)], node.children, "children of a node");
    CheckCount(active_children[Index(id)], node.active_children, "active children of a node");
  });
  CheckRoots();
  CheckList(on_device_, false);
  CheckList(on_host_, true);
}

void PrefixTree::CheckRoots() const {
  std::unordered_map<NodeId, int32_t> children;
  ForEach([&](NodeId, const Node& node) {
    if (IsRoot(node.parent)) ++children[node.parent];
  });
  children.erase(kDefaultRoot);
  CheckCount(static_cast<int64_t>(children.size()), static_cast<int64_t>(roots_.size()), "roots");
  CheckCount(static_cast<int64_t>(root_of_key_.size()), static_cast<int64_t>(roots_.size()),
             "keys");
  for (const auto& [root, count] : children) {
    CheckCount(count, roots_.at(root).children, "children of a root");
  }
}

void PrefixTree::CheckList(const EvictionList& list, bool of_host) const {
  int32_t inactive = 0;
  ForEach([&](NodeId, const Node& node) {
    inactive += node.on_host() == of_host && !node.active() ? 1 : 0;
  });
  CheckCount(inactive, list.size(), "inactive nodes");
  std::vector<int32_t> age(nodes_.size(), -1);  // place in the list, oldest first
  int32_t listed = 0;
  for (NodeId node = list.oldest(); node != kNone && listed <= inactive;
       node = list.NewerThan(node)) {
    TANDEM_CHECK(At(node).on_host() == of_host && !At(node).active(), "a node in the wrong list");
    age[Index(node)] = listed++;
  }
  CheckCount(listed, inactive, "length of an eviction list");
  ForEach([&](NodeId id, const Node& node) {
    if (age[Index(id)] < 0 || IsRoot(node.parent) || age[Index(node.parent)] < 0) return;
    TANDEM_CHECK(age[Index(id)] < age[Index(node.parent)],
                 "a parent would be evicted before its child");
  });
}

}  // namespace tandem
