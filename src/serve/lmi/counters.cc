#include "serve/lmi/counters.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string_view>

namespace tandem::serve::lmi {

void Counters::CountLocked(Kind kind, const std::optional<ErrorRate>& rate) {
  if (!rate || rate->errors < 1) return;
  std::deque<Nanos>& times = times_[kind];
  const Nanos now = clock_.Now();
  times.push_back(now);
  while (!times.empty() && (now - times.front() > rate->within ||
                            static_cast<int64_t>(times.size()) > rate->errors)) {
    times.pop_front();
  }
  if (static_cast<int64_t>(times.size()) == rate->errors) too_many_ = true;
}

void Counters::CountFault(Fault fault) {
  const MutexLock lock(mutex_);
  switch (fault) {
    case Fault::kRequest:
    case Fault::kModel:
    case Fault::kGone:
      return;  // the client's
    case Fault::kQueueFull:
    case Fault::kNoWorker:
      ++wlm_errors_;
      CountLocked(kWlm, rates_.wlm);
      break;
    case Fault::kTimeout:
      ++timeouts_;
      CountLocked(kServer, rates_.server);
      break;
    case Fault::kGeneration:
      ++server_errors_;
      CountLocked(kModel, rates_.model);
      break;
  }
  CountLocked(kAny, rates_.any);
}

void Counters::CountResponse(int status) {
  const MutexLock lock(mutex_);
  ++responses_[status >= 500 ? 2 : status >= 400 ? 1 : 0];
}

bool Counters::TooManyErrors() const {
  const MutexLock lock(mutex_);
  return too_many_;
}

std::string Counters::Text() const {
  const MutexLock lock(mutex_);
  std::string out;
  const auto add = [&out](std::string_view name, int64_t value) {
    fmt::format_to(std::back_inserter(out), "# TYPE {0} counter\n{0} {1}\n", name, value);
  };
  add("Response_2XX_total", responses_[0]);
  add("Response_4XX_total", responses_[1]);
  add("Response_5XX_total", responses_[2]);
  add("WlmError_total", wlm_errors_);
  add("ServerError_total", server_errors_);
  add("RollingBatchTimeout_total", timeouts_);
  return out;
}

}  // namespace tandem::serve::lmi
