#include "runtime/cache/kv_events.h"

#include <algorithm>

#include "base/checksum.h"

namespace tandem {
namespace {

constexpr uint64_t kNoKeyHash = 0;

uint64_t HashOf(std::span<const int32_t> tokens, uint64_t before) {
  return Hash64(std::as_bytes(tokens), before);
}

// As it is told: never 0, which stands for none.
uint64_t Shown(uint64_t hash) { return std::max<uint64_t>(hash >> 11, 1); }

}  // namespace

KvEvents::KvEvents(int32_t max_events, int32_t device_blocks, int32_t host_blocks,
                   int32_t block_tokens, uint64_t secret)
    : device_blocks_(device_blocks),
      host_blocks_(host_blocks),
      block_tokens_(static_cast<size_t>(block_tokens)),
      secret_(secret),
      hashes_(static_cast<size_t>(device_blocks) + static_cast<size_t>(host_blocks)),
      keys_(hashes_.size()),
      ring_(static_cast<size_t>(max_events)),
      tokens_(ring_.size() * block_tokens_) {
  Add({.kind = KvEvent::Kind::kCreated});
}

void KvEvents::Stored(NodeId node, NodeId parent, std::string_view key,
                      std::span<const int32_t> tokens) {
  const auto index = static_cast<size_t>(node);
  const bool is_first = PrefixTree::IsRoot(parent);
  uint64_t before = kNoKeyHash;
  if (!is_first) {
    before = hashes_[static_cast<size_t>(parent)];
    keys_[index] = keys_[static_cast<size_t>(parent)];
  } else {
    if (!key.empty()) before = Hash64(std::as_bytes(std::span(key)), secret_);
    keys_[index] = key.empty() ? 0 : Shown(HashOf({}, before));
  }
  hashes_[index] = HashOf(tokens, before);
  const bool has_key = keys_[index] != 0;
  Add({.kind = KvEvent::Kind::kStored,
       .hash = Shown(hashes_[index]),
       .parent = is_first ? 0 : Shown(before),
       .key = keys_[index]},
      has_key ? std::span<const int32_t>() : tokens);
}

void KvEvents::Removed(NodeId node) {
  Add({.kind = KvEvent::Kind::kRemoved, .hash = Shown(hashes_[static_cast<size_t>(node)])});
}

void KvEvents::Updated(NodeId node, bool to_host) {
  Add({.kind = KvEvent::Kind::kUpdated,
       .to_host = to_host,
       .hash = Shown(hashes_[static_cast<size_t>(node)])});
}

void KvEvents::Add(const Entry& entry, std::span<const int32_t> tokens) {
  const MutexLock lock(mutex_);
  if (end_ - begin_ == ring_.size()) {
    ++begin_;
    ++lost_;
  }
  const size_t place = end_++ % ring_.size();
  ring_[place] = entry;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<ptrdiff_t>(place * block_tokens_));
}

KvEventBatch KvEvents::Take(size_t most) {
  KvEventBatch batch;
  const MutexLock lock(mutex_);
  const uint64_t end = std::min<uint64_t>(end_, begin_ + most);
  batch.events.reserve(static_cast<size_t>(end - begin_));
  for (; begin_ < end; ++begin_) {
    const size_t place = begin_ % ring_.size();
    const Entry& entry = ring_[place];
    KvEvent& event = batch.events.emplace_back();
    event.id = begin_;
    event.kind = entry.kind;
    event.hash = entry.hash;
    event.parent = entry.parent;
    event.key = entry.key;
    event.to_host = entry.to_host;
    if (entry.kind == KvEvent::Kind::kCreated) {
      event.device_blocks = device_blocks_;
      event.host_blocks = host_blocks_;
    } else if (entry.kind == KvEvent::Kind::kStored && entry.key == 0) {
      const auto first = tokens_.begin() + static_cast<ptrdiff_t>(place * block_tokens_);
      event.tokens.assign(first, first + static_cast<ptrdiff_t>(block_tokens_));
    }
  }
  batch.lost = lost_;
  return batch;
}

}  // namespace tandem
