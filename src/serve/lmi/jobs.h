// Jobs: how many invocations of each model are in progress, and the bound on those that wait. Safe
// on any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/status.h"

namespace tandem::serve::lmi {

class Jobs : public std::enable_shared_from_this<Jobs> {
 public:
  using Ticket = std::shared_ptr<void>;  // an invocation is in progress while this lives

  // RESOURCE_EXHAUSTED with Reason::kQueueFull where `most` are in progress already.
  Result<Ticket> Begin(const std::string& model, int64_t most);

 private:
  void End(const std::string& model);

  Mutex mutex_;
  std::map<std::string, int64_t> counts_ TANDEM_GUARDED_BY(mutex_);  // above 0
};

}  // namespace tandem::serve::lmi
