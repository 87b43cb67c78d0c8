#include "runtime/execution/remote_rank.h"

#include <span>
#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

// For a process to read that it is to stop, and to go.
constexpr Nanos kStopTime = std::chrono::seconds(5);

class LinkLine final : public LeaderLine {
 public:
  LinkLine(RankLink& leader, Communicator& ranks) : leader_(leader), ranks_(ranks) {}

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
  {
    // An end with unread bytes could take the message back.
    MutexLock lock(mutex_);
    changed_.WaitFor(lock, kStopTime, [this]() TANDEM_REQUIRES(mutex_) { return failed_; });
  }
  link_->End();
  thread_.join();
}

void RemoteRank::Send(const RankMessage& message) {
  // What ends the link is found by the thread that listens.
  static_cast<void>(link_->Send(message));
}

std::optional<uint64_t> RemoteRank::AwaitDrawn() {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return drawn_.has_value() || failed_; });
  return std::exchange(drawn_, std::nullopt);
}

void RemoteRank::Listen() {
  RankMessage message;
  for (bool drawn = true; drawn;) {
    const Status status = link_->Receive(message);
    uint64_t hash = 0;
    WireReader reader(message);
    reader.Value(hash);
    drawn = status.ok() && reader.complete();
    if (!drawn) {
      ranks_->Fail(status.ok()
                       ? Unavailable("rank " + std::to_string(link_->peer()) + " has failed")
                       : status);
    }
    const MutexLock lock(mutex_);
    if (drawn) {
      drawn_ = hash;
    } else {
      failed_ = true;
    }
    changed_.NotifyAll();
  }
}

Status FollowLeader(RankParts& parts, RankLink& leader, int32_t max_batch_size) {
  LinkLine line(leader, *parts.ranks);
  return RankFollower(*parts.executor, *parts.ranks, max_batch_size, line).Run();
}

}  // namespace tandem
