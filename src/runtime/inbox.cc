#include "runtime/inbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/reason.h"

namespace tandem {
namespace {

template <typename T>
void MoveAll(std::vector<T>& from, std::vector<T>& to) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

}  // namespace

bool AnyNames(std::span<const Cancellation> cancels, RequestId request, int32_t choice) {
  return std::any_of(cancels.begin(), cancels.end(), [&](const Cancellation& cancel) {
    return cancel.request == request && (cancel.choice == kAllChoices || cancel.choice == choice);
  });
}

Status Inbox::HasRoomLocked(int32_t count) const {
  TANDEM_RETURN_IF_ERROR(closed_);
  if (waiting_ + count > max_waiting_) {
    return ResourceExhausted("Maximum queue size of " + std::to_string(max_waiting_) +
                             " has been reached, please try again later")
        .WithReason(Reason::kQueueFull);
  }
  return {};
}

Status Inbox::HasRoom(int32_t count) const {
  const MutexLock lock(mutex_);
  return HasRoomLocked(count);
}

Status Inbox::Put(std::vector<std::unique_ptr<Sequence>>& sequences) {
  {
    const MutexLock lock(mutex_);
    const auto count = static_cast<int32_t>(sequences.size());
    TANDEM_RETURN_IF_ERROR(HasRoomLocked(count));
    waiting_ += count;
    open_ += count;
    MoveAll(sequences, sequences_);
  }
  work_.NotifyOne();
  return {};
}

void Inbox::Cancel(Cancellation what) {
  {
    const MutexLock lock(mutex_);
    // A client that repeats its cancellation must not grow the list.
    if (AnyNames(cancels_, what.request, what.choice)) return;
    cancels_.push_back(what);
  }
  work_.NotifyOne();
}

void Inbox::CancelAll() {
  {
    const MutexLock lock(mutex_);
    cancel_all_ = true;
  }
  work_.NotifyOne();
}

void Inbox::Close(const Status& why) {
  const MutexLock lock(mutex_);
  if (closed_.ok()) closed_ = why;
}

void Inbox::WakeLoop() {
  {
    const MutexLock lock(mutex_);
    woken_ = true;
  }
  work_.NotifyOne();
}

bool Inbox::Take(std::vector<std::unique_ptr<Sequence>>& sequences,
                 std::vector<Cancellation>& cancels) {
  const MutexLock lock(mutex_);
  MoveAll(sequences_, sequences);
  MoveAll(cancels_, cancels);
  woken_ = false;
  return std::exchange(cancel_all_, false);
}

void Inbox::LeftQueue() {
  const MutexLock lock(mutex_);
  --waiting_;
}

void Inbox::Ended() {
  {
    const MutexLock lock(mutex_);
    if (--open_ > 0) return;
  }
  empty_.NotifyAll();
}

void Inbox::WaitForWork(Nanos timeout) {
  MutexLock lock(mutex_);
  work_.WaitFor(lock, timeout, [this]() TANDEM_REQUIRES(mutex_) {
    return woken_ || cancel_all_ || !sequences_.empty() || !cancels_.empty();
  });
}

bool Inbox::WaitUntilEmpty(Nanos timeout) {
  MutexLock lock(mutex_);
  return empty_.WaitFor(lock, timeout, [this]() TANDEM_REQUIRES(mutex_) { return open_ == 0; });
}

int32_t Inbox::open() const {
  const MutexLock lock(mutex_);
  return open_;
}

}  // namespace tandem
