// PrefixRouter: which of several replicas of an engine gets a request. It goes where the longest
// part of its prompt is cached, unless another replica has so much less to do that computing that
// part again is the smaller loss.
//
// What a replica has cached is not asked for but concluded from the prompts that were sent there
// (decisions/0037): a wrong guess costs time and nothing else. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "runtime/request/request.h"
#include "runtime/routing/sent_prefixes.h"

namespace tandem {

// A replica as the choice sees it.
struct ReplicaState {
  bool is_open = true;       // may get the request
  int64_t load = 0;          // tokens that it has to compute and to hold for its open requests
  int64_t cached = 0;        // tokens of the prompt, from its beginning
  int64_t sequences = 0;     // open ones
  int64_t known_blocks = 0;  // of all prompts that were sent there
};

// The index of the replica; none when none is open. Replicas whose load is at most a quarter above
// the least count as equally loaded; beyond that a token of load weighs as much as a cached one.
// Among equals the one with the fewest open sequences wins, so that all batches are full when there
// is enough to do; then the least loaded; then the one with the fewest known blocks, so that
// conversations that come one at a time fill all caches. A pure function.
std::optional<size_t> ChooseReplica(std::span<const ReplicaState> replicas);

class PrefixRouter {
 public:
  // `block_tokens`: of the replicas' caches, which each hold `max_blocks` blocks. 0 blocks: nothing
  // is cached, and the load alone decides.
  PrefixRouter(size_t num_replicas, int32_t block_tokens, int64_t max_blocks);

  // The blocks of the prompt that may be shared. A pure function of the request.
  PrefixHashes HashesOf(const Request& request) const;

  // Chooses among the replicas that have not refused the request, and counts its tokens there from
  // now on, so that its events may come at any time. None when all have refused.
  std::optional<size_t> Route(RequestId id, const Request& request, const PrefixHashes& hashes,
                              const std::vector<bool>& refused);
  // What the replica of the last Route said to it.
  void Accept(size_t replica, const PrefixHashes& hashes);
  void Refuse(RequestId id);

  // News of a request. Its tokens count until the last event of each choice was read.
  void Note(const Event& event);
  // Of an open request.
  std::optional<size_t> ReplicaOf(RequestId id) const;
  // Tokens to compute and to hold.
  int64_t LoadOf(size_t replica) const;

 private:
  struct Replica {
    int64_t load = 0;
    int64_t sequences = 0;
    SentPrefixes prefixes;
  };
  struct Open {
    size_t replica = 0;
    int32_t choices = 0;     // that have not ended: open sequences
    int64_t to_compute = 0;  // prompt tokens, until the first token is there
    int64_t held = 0;        // of the prompt and of all choices
  };
  void Close(std::unordered_map<RequestId, Open>::iterator open) TANDEM_REQUIRES(mutex_);

  const int32_t block_tokens_;
  const bool has_cache_;
  mutable Mutex mutex_;
  std::vector<Replica> replicas_ TANDEM_GUARDED_BY(mutex_);
  std::unordered_map<RequestId, Open> open_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem
