#include "serve/lmi/jobs.h"

#include <fmt/format.h>

#include "base/reason.h"

namespace tandem::serve::lmi {

Result<Jobs::Ticket> Jobs::Begin(const std::string& model, int64_t most) {
  {
    const MutexLock lock(mutex_);
    int64_t& count = counts_[model];
    if (count >= most) {
      if (count == 0) counts_.erase(model);
      return ResourceExhausted(
                 fmt::format("Worker queue capacity exceeded for model: {}; send the request again "
                             "later, or raise job_queue_size",
                             model))
          .WithReason(Reason::kQueueFull);
    }
    ++count;
  }
  return Ticket(nullptr, [jobs = shared_from_this(), model](void*) { jobs->End(model); });
}

void Jobs::End(const std::string& model) {
  const MutexLock lock(mutex_);
  const auto found = counts_.find(model);
  if (--found->second == 0) counts_.erase(found);
}

}  // namespace tandem::serve::lmi
