#include "runtime/execution/remote_rank.h"

#include <span>
#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

// For a process to read that it is to stop, and to go.
constexpr Nanos kStopTime = std::chrono::seconds(5);

class LeaderOverLink final : public LeaderLine {
 public:
  LeaderOverLink(RankLink& leader, Communicator& ranks) : leader_(leader), ranks_(ranks) {}

  Status Receive(RankMessage& message) override { return leader_.Receive(message); }
  // A leader that has left is found when nothing more is received.
  void TellDrawn(uint64_t hash) override {
    WireWriter(told_).Value(hash);
    static_cast<void>(leader_.Send(told_));
  }
  // The leader finds the ranks' connections ended; why is told here.
  void TellFailed() override {
    LogError("the rank has failed: {}", ranks_.status().ToString());
    told_.clear();
    static_cast<void>(leader_.Send(told_));
  }

 private:
  RankLink& leader_;
  Communicator& ranks_;
  RankMessage told_;
};

}  // namespace

RemoteRank::RemoteRank(std::shared_ptr<RankLink> link, std::shared_ptr<Communicator> ranks)
    : link_(std::move(link)), ranks_(std::move(ranks)), thread_([this] { Listen(); }) {}

void RemoteRank::End() {
  if (!thread_.joinable()) return;
  ranks_->Fail(Unavailable("the engine has ended"));
  RankMessage stop;
  WriteCall(RankCall::kStop, stop);
  static_cast<void>(link_->Send(stop));
  drawn_.AwaitFailure(kStopTime);  // an end with unread bytes could take the message back
  link_->End();
  thread_.join();
}

void RemoteRank::Send(const RankMessage& message) {
  // What ends the link is found by the thread that listens.
  static_cast<void>(link_->Send(message));
}

void RemoteRank::Listen() {
  RankMessage message;
  for (;;) {
    const Status status = link_->Receive(message);
    uint64_t hash = 0;
    WireReader reader(message);
    reader.Value(hash);
    if (!status.ok() || !reader.complete()) {
      const std::string rank = "rank " + std::to_string(link_->peer());
      ranks_->Fail(status.ok() ? Unavailable(rank + " has failed") : status);
      return drawn_.Fail();
    }
    drawn_.Put(hash);
  }
}

Status FollowLeader(RankParts& parts, RankLink& leader, int32_t max_batch_size) {
  LeaderOverLink line(leader, *parts.ranks);
  return RankFollower(*parts.executor, *parts.ranks, max_batch_size, line).Run();
}

}  // namespace tandem
