// RemoteRank: a rank that follows in a process of its own, and that process's side. The leader's
// calls go down a link; hashes of what was drawn come up. A link that ends is a rank that has left:
// that fails the ranks at once, whether a step runs or not.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "comm/processes/rank_link.h"
#include "runtime/execution/drawn_hash.h"
#include "runtime/execution/other_rank.h"
#include "runtime/execution/rank_follower.h"

namespace tandem {

class RemoteRank final : public OtherRank {
 public:
  // `ranks`: the leader's own communicator.
  RemoteRank(std::shared_ptr<RankLink> link, std::shared_ptr<Communicator> ranks);
  ~RemoteRank() override { End(); }

  void Send(const RankMessage& message) override;
  // Waits for the process for some seconds at most.
  void End() override;
  void Abandon() override { link_->End(); }
  std::optional<uint64_t> AwaitDrawn() override { return drawn_.Take(); }

 private:
  void Listen();

  const std::shared_ptr<RankLink> link_;
  const std::shared_ptr<Communicator> ranks_;
  DrawnHash drawn_;
  std::thread thread_;
};

// Runs a rank's executor until the process that leads ends it. UNAVAILABLE when that process has
// left, and whatever error the rank's device had.
Status FollowLeader(RankParts& parts, RankLink& leader, int32_t max_batch_size);

}  // namespace tandem
