// SentPrefixes: the beginnings of the prompts that were sent to a replica, block by block: a guess
// of what its cache holds. As many blocks as that has; the ones that were sent longest ago are
// forgotten first, as the cache evicts them. A plain value.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tandem {

// For each full block of a prompt a hash of it, of all before it and of the key.
using PrefixHashes = std::vector<uint64_t>;

// Prompts under different keys share nothing (Request::cache_key). Pure.
PrefixHashes HashPrefixes(std::span<const int32_t> prompt, std::string_view key,
                          int32_t block_tokens);

class SentPrefixes {
 public:
  explicit SentPrefixes(int64_t max_blocks) : max_blocks_(max_blocks) {}

  // Blocks at the beginning of the prompt that were sent before.
  int64_t Match(const PrefixHashes& hashes) const;
  void Add(const PrefixHashes& hashes);
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  int64_t max_blocks_;
  std::list<uint64_t> order_;  // from the newest on
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> places_;
};

}  // namespace tandem
