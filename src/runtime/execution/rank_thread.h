// RankThread: a rank that follows on a thread of the leader's process.
#pragma once

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "runtime/execution/drawn_hash.h"
#include "runtime/execution/other_rank.h"
#include "runtime/execution/rank_follower.h"

namespace tandem {

class RankThread final : public OtherRank, private LeaderLine {
 public:
  // Calls that may wait for the rank; further ones wait for room.
  static constexpr size_t kWaiting = 64;

  // `max_batch_size`: slots of the executor.
  RankThread(RankParts parts, int32_t max_batch_size);
  ~RankThread() override { End(); }

  void Send(const RankMessage& message) override;
  // A step that the leader has only proposed never ends here, so the ranks' waits are ended.
  void End() override;
  std::optional<uint64_t> AwaitDrawn() override { return drawn_.Take(); }

 private:
  // For the follower, on its thread.
  Status Receive(RankMessage& message) override;
  void TellDrawn(uint64_t hash) override { drawn_.Put(hash); }
  void TellFailed() override { drawn_.Fail(); }

  const RankParts parts_;
  RankFollower follower_;
  DrawnHash drawn_;

  Mutex mutex_;
  Condition changed_;
  // A ring, whose memory is used again.
  std::vector<RankMessage> waiting_ TANDEM_GUARDED_BY(mutex_);
  uint64_t sent_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t received_ TANDEM_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace tandem
