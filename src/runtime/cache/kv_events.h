// KvEvents: what happens to the blocks of a prefix tree, as numbered events for routers that send a
// prompt to where its beginning is cached. Fed by KvCache on the engine thread; any thread takes
// events. A ring: when it is full the oldest event is lost, which shows as a gap in the numbers.
// Nothing allocates after construction, except Take.
//
// A block is named by a hash of its tokens and of the blocks before it: the same on every server
// for prefixes without a key. Under a key the hash depends on the key and on a number drawn at
// start, and the events carry no tokens, so that neither the key nor what was asked under it can be
// read from them. Hashes have 53 bits, which every reader of JSON keeps.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "runtime/cache/prefix_tree.h"

namespace tandem {

struct KvEvent {
  enum class Kind : uint8_t {
    kCreated,  // the cache itself: always the first event
    kStored,   // a block became part of the tree, on the device
    kRemoved,  // it left the tree
    kUpdated,  // it moved between device and host
  };
  uint64_t id = 0;  // counts from 0
  Kind kind = Kind::kCreated;
  uint64_t hash = 0;
  uint64_t parent = 0;   // kStored: hash of the block before; 0: there is none
  uint64_t key = 0;      // kStored: tells prefixes under different keys apart; 0: no key
  bool to_host = false;  // kUpdated: else to the device
  std::vector<int32_t> tokens = {};  // kStored without a key
  int32_t device_blocks = 0;         // kCreated
  int32_t host_blocks = 0;           // kCreated
  int32_t replica = -1;              // whose cache it is; -1: the engine has no replicas
};

struct KvEventBatch {
  std::vector<KvEvent> events;  // in their order
  uint64_t lost = 0;            // events overwritten before anybody took them, since the start
};

class KvEvents {
 public:
  // `secret`: of the hashes under keys.
  KvEvents(int32_t max_events, int32_t device_blocks, int32_t host_blocks, int32_t block_tokens,
           uint64_t secret);

  // Engine thread. The nodes are the tree's; a parent is a root or a node that was stored.
  void Stored(NodeId node, NodeId parent, std::string_view key, std::span<const int32_t> tokens);
  void Removed(NodeId node);
  void Updated(NodeId node, bool to_host);

  // Any thread: takes at most `most` of the oldest events.
  KvEventBatch Take(size_t most);

 private:
  struct Entry {
    KvEvent::Kind kind = KvEvent::Kind::kCreated;
    bool to_host = false;
    uint64_t hash = 0;
    uint64_t parent = 0;
    uint64_t key = 0;
  };
  void Add(const Entry& entry, std::span<const int32_t> tokens = {});

  const int32_t device_blocks_;
  const int32_t host_blocks_;
  const size_t block_tokens_;
  const uint64_t secret_;
  // Engine thread; of each node, whole 64 bits.
  std::vector<uint64_t> hashes_;
  std::vector<uint64_t> keys_;

  mutable Mutex mutex_;
  std::vector<Entry> ring_ TANDEM_GUARDED_BY(mutex_);      // the event of number id at id % size
  std::vector<int32_t> tokens_ TANDEM_GUARDED_BY(mutex_);  // [size, block_tokens]
  uint64_t begin_ TANDEM_GUARDED_BY(mutex_) = 0;           // the oldest event that is kept
  uint64_t end_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t lost_ TANDEM_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
