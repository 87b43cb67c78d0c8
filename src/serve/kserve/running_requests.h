// The requests of one name that run, whether or not the model was replaced since, so that another
// request of the same client and id can stop them. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// The end of a running request that another request may ask for.
struct Stop {
  explicit Stop(Wake call_wake) : wake(std::move(call_wake)) {}

  const Wake wake;
  std::atomic<bool> asked{false};
};

class RunningRequests {
 public:
  // A request without an id cannot be stopped.
  void Add(const InferRequest& request, const std::shared_ptr<Stop>& stop);
  void Remove(const InferRequest& request, const Stop* stop);
  // Those with the id and the client of `request`.
  void StopAll(const InferRequest& request);

 private:
  Mutex mutex_;
  std::multimap<std::string, std::shared_ptr<Stop>> by_id_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::serve::kserve
