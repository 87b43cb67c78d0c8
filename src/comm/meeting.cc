#include "comm/meeting.h"

#include <immintrin.h>

#include <chrono>
#include <thread>
#include <utility>

namespace tandem {
namespace {

// Ranks meet several times in a layer: sleeping in between would cost more than the layer.
constexpr auto kSpin = std::chrono::microseconds(50);

}  // namespace

void SharedFailure::Fail(const Status& why) {
  const MutexLock lock(mutex_);
  if (!status_.ok()) return;
  status_ = why;
  failed_.store(true, std::memory_order_release);
  for (Meeting* const meeting : meetings_) meeting->Wake();
}

Status SharedFailure::status() const {
  const MutexLock lock(mutex_);
  return status_;
}

Meeting::Meeting(int size, std::shared_ptr<SharedFailure> failure)
    : failure_(std::move(failure)), tensors_(static_cast<size_t>(size)) {
  const MutexLock lock(failure_->mutex_);
  failure_->meetings_.push_back(this);
}

Meeting::~Meeting() {
  const MutexLock lock(failure_->mutex_);
  std::erase(failure_->meetings_, this);
}

bool Meeting::Meet() {
  const uint64_t round = round_.load(std::memory_order_relaxed);
  if (failure_->failed()) return false;
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
    arrived_.store(0, std::memory_order_relaxed);
    const MutexLock lock(mutex_);
    round_.store(round + 1, std::memory_order_release);
    moved_.NotifyAll();
    return !failure_->failed();
  }
  Await(round);
  return !failure_->failed();
}

void Meeting::Await(uint64_t round) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  int spins = 0;
  while (!Over(round)) {
    _mm_pause();
    if (++spins < 64) continue;
    spins = 0;
    std::this_thread::yield();
    if (std::chrono::steady_clock::now() < until) continue;
    MutexLock lock(mutex_);
    moved_.Wait(lock, [this, round] { return Over(round); });
  }
}

// Whoever waits has either seen the failure or sleeps.
void Meeting::Wake() {
  const MutexLock lock(mutex_);
  moved_.NotifyAll();
}

}  // namespace tandem
