// Counters: what went wrong in these routes, under djl-serving's names, and whether it went wrong
// too often to call the server healthy. Safe on any thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "serve/lmi/errors.h"
#include "serve/lmi/settings.h"

namespace tandem::serve::lmi {

class Counters {
 public:
  // `clock` outlives the counters.
  Counters(const ErrorRates& rates, const Clock& clock) : rates_(rates), clock_(clock) {}

  void CountFault(Fault fault);
  void CountResponse(int status);
  // One of the error rates was reached; it stays so.
  bool TooManyErrors() const;
  // Prometheus' lines.
  std::string Text() const;

 private:
  enum Kind : uint8_t { kWlm, kServer, kModel, kAny, kKinds };

  void CountLocked(Kind kind, const std::optional<ErrorRate>& rate) TANDEM_REQUIRES(mutex_);

  const ErrorRates rates_;
  const Clock& clock_;
  mutable Mutex mutex_;
  // The newest errors of each kind, at most as many as its rate allows.
  std::array<std::deque<Nanos>, kKinds> times_ TANDEM_GUARDED_BY(mutex_);
  bool too_many_ TANDEM_GUARDED_BY(mutex_) = false;
  int64_t wlm_errors_ TANDEM_GUARDED_BY(mutex_) = 0;
  int64_t server_errors_ TANDEM_GUARDED_BY(mutex_) = 0;
  int64_t timeouts_ TANDEM_GUARDED_BY(mutex_) = 0;
  std::array<int64_t, 3> responses_ TANDEM_GUARDED_BY(mutex_) = {};  // 2XX, 4XX, 5XX
};

}  // namespace tandem::serve::lmi
