// AsyncResults: invocations whose answer is fetched later (`x-synchronous: false`). An invocation
// goes on without its client. Its answer is kept in items, for a limited time and within limited
// memory, and a client fetches them with the invocation's token.
//
// An answer that was fetched to its end can be fetched again until its time is over or its place is
// needed: when number or bytes are at their limit, the one that was fetched first goes first.
// Answers that were not fetched to their end keep their places. If they fill the number, further
// invocations are refused; an answer that does not fit into the bytes beside them is dropped, and
// its token finds an error.
//
// Owned by the front end; any thread.
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
  size_t results = 256;      // kept at a time, of which all may still run
  size_t bytes = 64u << 20;  // in memory, of all their items
  // From the beginning, and from each fetch until the first one that reached the answer's end.
  Nanos expiry = std::chrono::minutes(10);
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

  // Begins an invocation; its token. RESOURCE_EXHAUSTED where answers that were not fetched take up
  // the number or the bytes. `caller`: only those who have the same may fetch it.
  Result<std::string> Start(std::string_view caller, const Begin& begin);
  // From the token on, at most `most` items. INVALID_ARGUMENT for an unknown token.
  Result<AsyncPart> Fetch(std::string_view token, std::string_view caller, size_t most);
  // Invocations whose answer is not complete.
  int num_running() const;

 private:
  struct Entry;
  using EntryPtr = std::shared_ptr<Entry>;

  void Poll(const std::weak_ptr<Entry>& waiting);
  // False where there is no room for the item, also without the answers that were fetched.
  bool Keep(Entry& entry, const std::string& item) TANDEM_REQUIRES(mutex_);
  // Ends the answer as an error.
  void Replace(Entry& entry, int status, std::string_view message) TANDEM_REQUIRES(mutex_);
  // Of those that were fetched to their end; false if there is none.
  bool DropOldestFetched() TANDEM_REQUIRES(mutex_);
  void Expire() TANDEM_REQUIRES(mutex_);
  // Of an entry that is about to be erased.
  void Leave(const EntryPtr& entry) TANDEM_REQUIRES(mutex_);

  const AsyncLimits limits_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, EntryPtr, std::less<>> entries_ TANDEM_GUARDED_BY(mutex_);
  size_t bytes_ TANDEM_GUARDED_BY(mutex_) = 0;
  uint64_t num_fetched_ TANDEM_GUARDED_BY(mutex_) = 0;  // to their end
  Worker worker_;  // last: polls the replies, one after the other
};

}  // namespace tandem::serve::lmi
