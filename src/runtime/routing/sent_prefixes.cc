#include "runtime/routing/sent_prefixes.h"

#include <algorithm>
#include <cstddef>

#include "base/checksum.h"

namespace tandem {

PrefixHashes HashPrefixes(std::span<const int32_t> prompt, std::string_view key,
                          int32_t block_tokens) {
  const auto width = static_cast<size_t>(block_tokens);
  PrefixHashes hashes;
  hashes.reserve(prompt.size() / width);
  uint64_t hash = key.empty() ? 0 : Hash64(std::as_bytes(std::span(key)), 0);
  for (; prompt.size() >= width; prompt = prompt.subspan(width)) {
    hash = Hash64(std::as_bytes(prompt.first(width)), hash);
    hashes.push_back(hash);
  }
  return hashes;
}

int64_t SentPrefixes::Match(const PrefixHashes& hashes) const {
  const auto end =
      std::ranges::find_if_not(hashes, [this](uint64_t hash) { return places_.contains(hash); });
  return end - hashes.begin();
}

// A block is always newer than those after it, so what is forgotten is the end of a prompt.
void SentPrefixes::Add(const PrefixHashes& hashes) {
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    const auto [place, is_new] = places_.try_emplace(*hash);
    if (is_new) {
      place->second = order_.insert(order_.begin(), *hash);
    } else {
      order_.splice(order_.begin(), order_, place->second);
    }
  }
  for (; size() > max_blocks_; order_.pop_back()) places_.erase(order_.back());
}

}  // namespace tandem
