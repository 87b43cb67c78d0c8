// AsyncResults: invocations whose answer is fetched later (`x-synchronous: false`). An invocation
// goes on without its client. Its answer is kept in items, for a limited time and within limited
// memory, and a client fetches them with the invocation's token. Owned by the front end; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "serve/http/message.h"
#include "serve/worker.h"

namespace tandem::serve::lmi {

struct AsyncLimits {
  size_t results = 256;                     // kept at a time, of which all may still run
  size_t bytes = 64u << 20;                 // of all their items
  Nanos expiry = std::chrono::minutes(10);  // from the beginning, and from each fetch
};

// A part of an answer.
struct AsyncPart {
  bool is_pending = false;  // there is nothing yet
  HttpHead head;
  std::string body;
  std::string next_token;  // empty: there is nothing more
};

class AsyncResults {
 public:
  using Begin = std::function<std::unique_ptr<Reply>(std::function<void()> wake)>;

  // `clock` outlives the results.
  AsyncResults(const AsyncLimits& limits, const Clock& clock);
  // What still runs is cancelled.
  ~AsyncResults();
  AsyncResults(const AsyncResults&) = delete;
  AsyncResults& operator=(const AsyncResults&) = delete;

  // Begins an invocation; its token. RESOURCE_EXHAUSTED where there are too many. `caller`: only
  // those who have the same may fetch it.
  Result<std::string> Start(std::string_view caller, const Begin& begin);
  // From the token on, at most `most` items. INVALID_ARGUMENT for an unknown token.
  Result<AsyncPart> Fetch(std::string_view token, std::string_view caller, size_t most);

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  void Poll(const std::weak_ptr<Entry>& waiting);
  void Expire() TANDEM_REQUIRES(mutex_);

  const AsyncLimits limits_;
  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, EntryPtr, std::less<>> entries_ TANDEM_GUARDED_BY(mutex_);
  size_t bytes_ TANDEM_GUARDED_BY(mutex_) = 0;
  Worker worker_;  // last: polls the replies, one after the other
};

}  // namespace tandem::serve::lmi
