#include "serve/kserve/model_statistics.h"

#include <algorithm>

#include "serve/unix_time.h"

namespace tandem::serve::kserve {

void ModelStatistics::Begin() {
  const MutexLock lock(mutex_);
  ++figures_.pending;
}

void ModelStatistics::FirstResponse(Nanos since_begin) {
  const MutexLock lock(mutex_);
  figures_.first_response.Add(since_begin);
  auto& buckets = figures_.first_response_buckets;
  for (size_t i = 0; i < kFirstResponseMs.size(); ++i) {
    if (since_begin <= std::chrono::milliseconds(kFirstResponseMs[i])) ++buckets[i];
  }
  ++buckets.back();
}

void ModelStatistics::Succeed(int64_t batch, Nanos total, Nanos queued) {
  const MutexLock lock(mutex_);
  --figures_.pending;
  figures_.last_inference = static_cast<uint64_t>(UnixMilliseconds());
  figures_.inference_count += static_cast<uint64_t>(batch);
  ++figures_.execution_count;
  figures_.success.Add(total);
  figures_.queue.Add(queued);
  figures_.compute.Add(std::max(total - queued, Nanos(0)));
}

void ModelStatistics::Fail(FailureReason reason, Nanos total) {
  const MutexLock lock(mutex_);
  --figures_.pending;
  figures_.failure.Add(total);
  ++figures_.failures[static_cast<size_t>(reason)];
}

StatisticsSnapshot ModelStatistics::Snapshot() const {
  const MutexLock lock(mutex_);
  return figures_;
}

FailureReason ReasonOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kResourceExhausted:
    case Code::kDeadlineExceeded:
      return FailureReason::kRejected;
    case Code::kCancelled:
      return FailureReason::kCanceled;
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
      return FailureReason::kBackend;
    default:
      return FailureReason::kOther;
  }
}

}  // namespace tandem::serve::kserve
