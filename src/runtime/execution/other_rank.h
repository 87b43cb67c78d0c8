// OtherRank: a rank that follows, as the one that leads sees it: on a thread of this process
// (rank_thread.h), or a process of its own (remote_rank.h). Used by the thread of the engine.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/execution/rank_messages.h"

namespace tandem {

class OtherRank {
 public:
  virtual ~OtherRank() = default;

  // One of the executor's calls. A rank that has failed ignores it.
  virtual void Send(const RankMessage& message) = 0;
  // Ends the rank's part of the engine and waits until it runs nothing any more. Ranks read each
  // other's memory, so all are ended before one is destroyed. Only the first call counts.
  virtual void End() = 0;
  // Unblocks a Send that may wait for ever. Any thread.
  virtual void Abandon() {}
  // Waits until the rank has landed the oldest step whose hash nobody has taken, and returns that
  // (HashOf); empty when the rank has failed.
  virtual std::optional<uint64_t> AwaitDrawn() = 0;
};

}  // namespace tandem
