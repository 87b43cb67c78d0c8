#include "serve/kserve/running_requests.h"

#include <vector>

namespace tandem::serve::kserve {
namespace {

// Clients with different API keys have different ids. Empty without an id.
std::string IdOf(const InferRequest& request) {
  return request.id.empty() ? "" : request.caller + "\n" + request.id;
}

}  // namespace

void RunningRequests::Add(const InferRequest& request, const std::shared_ptr<Stop>& stop) {
  const std::string id = IdOf(request);
  if (id.empty()) return;
  const MutexLock lock(mutex_);
  by_id_.emplace(id, stop);
}

void RunningRequests::Remove(const InferRequest& request, const Stop* stop) {
  const std::string id = IdOf(request);
  const MutexLock lock(mutex_);
  for (auto [at, end] = by_id_.equal_range(id); at != end; ++at) {
    if (at->second.get() != stop) continue;
    by_id_.erase(at);
    return;
  }
}

void RunningRequests::StopAll(const InferRequest& request) {
  const std::string id = IdOf(request);
  std::vector<std::shared_ptr<Stop>> stops;
  {
    const MutexLock lock(mutex_);
    for (auto [at, end] = by_id_.equal_range(id); at != end; ++at) stops.push_back(at->second);
  }
  for (const auto& stop : stops) {
    stop->asked = true;
    stop->wake();
  }
}

}  // namespace tandem::serve::kserve
