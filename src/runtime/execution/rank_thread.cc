#include "runtime/execution/rank_thread.h"

#include <utility>

namespace tandem {

RankThread::RankThread(RankParts parts, int32_t max_batch_size)
    : parts_(std::move(parts)),
      follower_(*parts_.executor, *parts_.ranks, max_batch_size, *this),
      waiting_(kWaiting),
      thread_([this] { static_cast<void>(follower_.Run()); }) {}

void RankThread::End() {
  if (!thread_.joinable()) return;
  parts_.ranks->Fail(Unavailable("the engine has ended"));
  RankMessage stop;
  WriteCall(RankCall::kStop, stop);
  Send(stop);
  thread_.join();
}

void RankThread::Send(const RankMessage& message) {
  MutexLock lock(mutex_);
  changed_.Wait(lock,
                [this]() TANDEM_REQUIRES(mutex_) { return sent_ - received_ < waiting_.size(); });
  waiting_[sent_ % waiting_.size()].assign(message.begin(), message.end());
  ++sent_;
  changed_.NotifyAll();
}

Status RankThread::Receive(RankMessage& message) {
  MutexLock lock(mutex_);
  changed_.Wait(lock, [this]() TANDEM_REQUIRES(mutex_) { return received_ < sent_; });
  std::swap(message, waiting_[received_ % waiting_.size()]);
  ++received_;
  changed_.NotifyAll();
  return {};
}

}  // namespace tandem
