// ModelStatistics: what the protocol reports about the calls of one model: counts and times. Owned
// by the repository and shared with the calls that run; every method may be called on any thread.
#pragma once

#include <array>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace tandem::serve::kserve {

struct CountedTime {
  uint64_t count = 0;
  Nanos time{0};

  void Add(Nanos duration) {
    ++count;
    time += duration;
  }
};

enum class FailureReason : uint8_t { kRejected, kCanceled, kBackend, kOther };
inline constexpr std::array kFailureReasons = {"REJECTED", "CANCELED", "BACKEND", "OTHER"};

struct StatisticsSnapshot {
  uint64_t last_inference = 0;   // milliseconds since 1970
  uint64_t inference_count = 0;  // a batch counts each entry
  uint64_t execution_count = 0;
  uint64_t pending = 0;  // calls that run
  CountedTime success;
  CountedTime failure;
  CountedTime queue;
  CountedTime compute;
  CountedTime first_response;
  // Calls whose first response came within each bound of kFirstResponseMs, and all.
  std::array<uint64_t, 5> first_response_buckets{};
  std::array<uint64_t, kFailureReasons.size()> failures{};
};
inline constexpr std::array<int, 4> kFirstResponseMs = {100, 500, 2000, 5000};

class ModelStatistics {
 public:
  void Begin();
  void FirstResponse(Nanos since_begin);
  void Succeed(int64_t batch, Nanos total, Nanos queued);
  void Fail(FailureReason reason, Nanos total);
  StatisticsSnapshot Snapshot() const;

 private:
  mutable Mutex mutex_;
  StatisticsSnapshot figures_ TANDEM_GUARDED_BY(mutex_);
};

FailureReason ReasonOf(Code code);

}  // namespace tandem::serve::kserve
