// Inbox: the clients' requests to the loop: new sequences and cancellations, put in by any thread
// and taken by the engine's in Admit. Bounded: by max_queue_size sequences that have not started
// yet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "runtime/scheduling/sequence.h"

namespace tandem {

// A cancellation: one choice of a request, or all of them.
struct Cancellation {
  RequestId request = 0;
  int32_t choice = kAllChoices;
};
// Whether one of them ends this choice of the request.
bool AnyNames(std::span<const Cancellation> cancels, RequestId request, int32_t choice);

class Inbox {
 public:
  explicit Inbox(int32_t max_waiting) : max_waiting_(max_waiting) {}

  // All choices of a request, all or nothing. RESOURCE_EXHAUSTED when full; when closed, the reason
  // given.
  Status Put(std::vector<std::unique_ptr<Sequence>>& sequences);
  // Whether `count` more sequences would be accepted now.
  Status HasRoom(int32_t count) const;
  void Cancel(Cancellation what);
  void CancelAll();
  // Refuses all further requests with the first reason given.
  void Close(const Status& why);
  void WakeLoop();

  // Engine thread: moves everything into the lists (appended); true when all open sequences are to
  // be cancelled.
  bool Take(std::vector<std::unique_ptr<Sequence>>& sequences, std::vector<Cancellation>& cancels);
  // Engine thread: a sequence started for the first time, or ended before that.
  void LeftQueue();
  // Engine thread: a sequence has ended.
  void Ended();
  // Sleeps until something arrives or `timeout` has passed.
  void WaitForWork(Nanos timeout);

  // True when every sequence has ended within `timeout`.
  bool WaitUntilEmpty(Nanos timeout);
  int32_t open() const;

 private:
  Status HasRoomLocked(int32_t count) const TANDEM_REQUIRES(mutex_);

  const int32_t max_waiting_;
  mutable Mutex mutex_;
  Condition work_;
  Condition empty_;
  std::vector<std::unique_ptr<Sequence>> sequences_ TANDEM_GUARDED_BY(mutex_);
  std::vector<Cancellation> cancels_ TANDEM_GUARDED_BY(mutex_);
  bool cancel_all_ TANDEM_GUARDED_BY(mutex_) = false;
  Status closed_ TANDEM_GUARDED_BY(mutex_);  // why; ok while open
  bool woken_ TANDEM_GUARDED_BY(mutex_) = false;
  int32_t waiting_ TANDEM_GUARDED_BY(mutex_) = 0;  // put, not yet started
  int32_t open_ TANDEM_GUARDED_BY(mutex_) = 0;     // put, not yet ended
};

}  // namespace tandem
