// Meeting: where threads of one process wait for each other, and see the tensors that the others
// bring. Several meetings share one failure, which ends all their waits. The communicators that
// meet share both. Used only in comm.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

class Meeting;

// The first failure of any rank, whichever meetings it takes part in. Any thread.
class SharedFailure {
 public:
  void Fail(const Status& why);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status status() const;

 private:
  friend class Meeting;

  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  Status status_ TANDEM_GUARDED_BY(mutex_);
  std::vector<Meeting*> meetings_ TANDEM_GUARDED_BY(mutex_);
};

class Meeting {
 public:
  // `size` threads meet. The failure knows the meeting as long as it lives.
  Meeting(int size, std::shared_ptr<SharedFailure> failure);
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  int size() const { return static_cast<int>(tensors_.size()); }
  SharedFailure& failure() const { return *failure_; }
  // What each brings: of the others to be read between two meetings.
  Tensor& tensor(int rank) { return tensors_[static_cast<size_t>(rank)]; }
  std::span<const Tensor> tensors() const { return tensors_; }

  // Returns when all threads have called it; false if a rank has failed.
  bool Meet();

 private:
  friend class SharedFailure;

  bool Over(uint64_t round) const {
    return round_.load(std::memory_order_acquire) != round || failure_->failed();
  }
  void Await(uint64_t round);
  void Wake();

  const std::shared_ptr<SharedFailure> failure_;
  std::vector<Tensor> tensors_;
  alignas(64) std::atomic<int> arrived_ = 0;
  alignas(64) std::atomic<uint64_t> round_ = 0;
  Mutex mutex_;
  Condition moved_;  // round_, or the failure
};

}  // namespace tandem
