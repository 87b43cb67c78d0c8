// PrefixTree: the prefixes whose keys and values are kept. A node is the content of one block: the
// tokens of a whole block that follow its parent's, under a key. Its keys and values lie on the
// device or, once they were evicted from there, on the host. The tree knows the nodes that nobody
// uses, in the order of their last use; KvCache decides where they lie and which of them leave.
// Part of a KvCache; engine thread only. Nothing allocates after construction, except for keys.
//
// Invariants:
// - a node lies in one place, in a block of the device or in a block of the host;
// - the parent of a node on the device is a root or on the device too, so that what is usable at
// once is the beginning of a prefix;
// - a node is active while it is held or has an active child; the eviction list of each place holds
// exactly the nodes there that are not active;
// - in a list a parent is newer than its children there: it becomes inactive when its last active
// child does, or later, and it moves to the host after they did. So the oldest node of the device
// has no child on the device, the oldest node of the host has no child at all, and eviction is
// O(1);
// - a key other than the empty one has a root exactly while its tree holds nodes.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/cache/eviction_list.h"
#include "runtime/cache/prefix_index.h"
#include "runtime/cache/window_blocks.h"

namespace tandem {

using NodeId = int32_t;
using HostBlockId = int32_t;

class PrefixTree {
 public:
  static constexpr int32_t kNone = PrefixIndex::kNone;  // no node, block or host block

  struct Node {
    NodeId parent = kNone;  // negative: a root
    int32_t children = 0;
    int32_t active_children = 0;
    int32_t holders = 0;
    int32_t draft_tokens = 0;  // leading tokens the draft has computed; the target has all of them
    BlockId block = kNone;     // where it lies: one of these
    HostBlockId host = kNone;

    bool active() const { return holders > 0 || active_children > 0; }
    bool on_host() const { return host != kNone; }
  };

  PrefixTree(int32_t max_nodes, int32_t block_tokens);

  const Node& At(NodeId node) const;
  int32_t size() const { return index_.size(); }
  static bool IsRoot(NodeId parent) { return parent < 0; }

  // The root of a key's tree; none if it holds nothing.
  std::optional<NodeId> FindRoot(std::string_view key) const;
  // The caller inserts a child at once.
  NodeId FindOrMakeRoot(std::string_view key);
  // The child of `parent` with exactly these tokens, or kNone.
  NodeId Find(NodeId parent, std::span<const int32_t> tokens) const {
    return index_.Find(parent, tokens);
  }
  // The child of `parent` that shares the most leading tokens.
  PrefixIndex::Common FindCommon(NodeId parent, std::span<const int32_t> tokens) const {
    return index_.FindCommon(parent, tokens);
  }

  // A new node in a block of the device, held once.
  NodeId Insert(NodeId parent, std::span<const int32_t> tokens, BlockId block);
  // The node has no children and is not held. It leaves the tree.
  void Erase(NodeId node);
  // A node that is held, or has an active child, is in no eviction list.
  void Hold(NodeId node);
  void Unhold(NodeId node);
  // The oldest node of the device moves to the host.
  void MoveToHost(NodeId node, HostBlockId host);
  // A node of the host that is held moves to the device; its parent is there.
  void MoveToDevice(NodeId node, BlockId block);
  void SetDraftTokens(NodeId node, int32_t tokens) { Mutable(node).draft_tokens = tokens; }

  // The inactive node that was used least recently; kNone if there is none.
  NodeId oldest_on_device() const { return on_device_.oldest(); }
  NodeId oldest_on_host() const { return on_host_.oldest(); }
  // Nodes of the device that are not active: each can leave it once its children have.
  int32_t num_evictable() const { return on_device_.size(); }

  // Calls visit(id, node) for every node.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (NodeId id = 0; id < static_cast<NodeId>(nodes_.size()); ++id) {
      if (in_use_[static_cast<size_t>(id)]) visit(id, nodes_[static_cast<size_t>(id)]);
    }
  }
  // Aborts with both values when the counts are inconsistent.
  void CheckIntegrity() const;

 private:
  struct Root {
    std::string key;
    int32_t children = 0;
  };
  struct KeyHash {
    using is_transparent = void;
    size_t operator()(std::string_view key) const { return std::hash<std::string_view>{}(key); }
  };

  Node& Mutable(NodeId node) { return const_cast<Node&>(At(node)); }
  EvictionList& ListOf(const Node& node) { return node.on_host() ? on_host_ : on_device_; }
  void AddChild(NodeId parent);
  void RemoveChild(NodeId parent);
  // A node has just become active (inactive): removes it from (adds it to) its eviction list, with
  // the ancestors that became so with it.
  void BecameActive(NodeId node);
  void BecameInactive(NodeId node);
  void CheckRoots() const;
  void CheckList(const EvictionList& list, bool of_host) const;

  std::vector<Node> nodes_;
  std::vector<bool> in_use_;
  std::vector<NodeId> free_;
  PrefixIndex index_;
  EvictionList on_device_;
  EvictionList on_host_;
  std::unordered_map<std::string, NodeId, KeyHash, std::equal_to<>> root_of_key_;
  std::unordered_map<NodeId, Root> roots_;  // except the empty key's
  NodeId last_root_;
};

}  // namespace tandem
