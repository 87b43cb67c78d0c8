#include "runtime/routing/prefix_router.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace tandem {
namespace {

// Loads that differ by less than this part of the least are equal.
constexpr int64_t kEqualPart = 4;

}  // namespace

std::optional<size_t> ChooseReplica(std::span<const ReplicaState> replicas) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const ReplicaState& replica : replicas) {
    if (replica.is_open) least = std::min(least, replica.load);
  }
  const auto rank = [&](const ReplicaState& replica) {
    const int64_t cost = std::max(replica.load, least + least / kEqualPart) - replica.cached;
    return std::tuple(cost, replica.sequences, replica.load, replica.known_blocks);
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (!replicas[i].is_open) continue;
    if (!best || rank(replicas[i]) < rank(replicas[*best])) best = i;
  }
  return best;
}

PrefixRouter::PrefixRouter(size_t num_replicas, int32_t block_tokens, int64_t max_blocks)
    : block_tokens_(block_tokens), has_cache_(max_blocks > 0) {
  for (size_t i = 0; i < num_replicas; ++i) {
    replicas_.push_back({.load = 0, .sequences = 0, .prefixes = SentPrefixes(max_blocks)});
  }
}

PrefixHashes PrefixRouter::HashesOf(const Request& request) const {
  // Nothing of a prompt whose logits are read is taken from a cache.
  if (!has_cache_ || request.reads_context()) return {};
  return HashPrefixes(request.prompt, request.cache_key, block_tokens_);
}

std::optional<size_t> PrefixRouter::Route(RequestId id, const Request& request,
                                          const PrefixHashes& hashes,
                                          const std::vector<bool>& refused) {
  const MutexLock lock(mutex_);
  std::vector<ReplicaState> states;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    states.push_back({.is_open = !refused[i],
                      .load = replica.load,
                      .cached = replica.prefixes.Match(hashes) * block_tokens_,
                      .sequences = replica.sequences,
                      .known_blocks = replica.prefixes.size()});
  }
  const std::optional<size_t> chosen = ChooseReplica(states);
  if (!chosen) return std::nullopt;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const Open open = {.replica = *chosen,
                     .choices = request.num_choices,
                     .to_compute = prompt - states[*chosen].cached,
                     .held = prompt};
  replicas_[*chosen].load += open.to_compute + open.held;
  replicas_[*chosen].sequences += open.choices;
  open_[id] = open;
  return chosen;
}

void PrefixRouter::Accept(size_t replica, const PrefixHashes& hashes) {
  const MutexLock lock(mutex_);
  replicas_[replica].prefixes.Add(hashes);
}

void PrefixRouter::Close(std::unordered_map<RequestId, Open>::iterator open) {
  Replica& replica = replicas_[open->second.replica];
  replica.load -= open->second.to_compute + open->second.held;
  replica.sequences -= open->second.choices;
  open_.erase(open);
}

void PrefixRouter::Refuse(RequestId id) {
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(id); found != open_.end()) Close(found);
}

void PrefixRouter::Note(const Event& event) {
  const MutexLock lock(mutex_);
  const auto found = open_.find(event.request);
  if (found == open_.end()) return;
  Open& open = found->second;
  if (const auto tokens = static_cast<int64_t>(event.tokens.size()); tokens > 0) {
    replicas_[open.replica].load += tokens - open.to_compute;
    open.held += tokens;
    open.to_compute = 0;
  }
  if (event.finish == FinishReason::kNone) return;
  --replicas_[open.replica].sequences;
  if (--open.choices == 0) Close(found);
}

std::optional<size_t> PrefixRouter::ReplicaOf(RequestId id) const {
  const MutexLock lock(mutex_);
  const auto found = open_.find(id);
  return found == open_.end() ? std::nullopt : std::optional(found->second.replica);
}

int64_t PrefixRouter::LoadOf(size_t replica) const {
  const MutexLock lock(mutex_);
  return replicas_[replica].load;
}

}  // namespace tandem
