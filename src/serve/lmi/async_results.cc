#include "serve/lmi/async_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <random>
#include <utility>

#include "serve/http/wake_handle.h"
#include "serve/lmi/errors.h"

namespace tandem::serve::lmi {
namespace {

// Nobody guesses one.
std::string NewToken() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) fmt::format_to(std::back_inserter(token), "{:08x}", random());
  return token;
}

// "TOKEN" or "TOKEN.ITEMS" → the token and the items that were fetched before.
std::pair<std::string_view, size_t> Split(std::string_view token) {
  const size_t dot = std::min(token.find('.'), token.size());
  const std::string_view digits = token.substr(std::min(dot + 1, token.size()));
  size_t items = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), items);
  return {token.substr(0, dot), items};
}

Status Unknown(std::string_view token) {
  return InvalidArgument(fmt::format("Invalid x-starting-token: {}", token));
}

}  // namespace

// All but the handle and the reply's insides are guarded by the results' mutex.
struct AsyncResults::Entry {
  std::string caller;
  Nanos deadline{0};
  std::shared_ptr<WakeHandle> wake;
  std::unique_ptr<Reply> reply;  // polled by the worker; null before it has begun and at its end
  HttpHead head;
  std::vector<std::string> items;
  size_t bytes = 0;  // of the items
  bool has_head = false;
  bool is_done = false;
  bool is_error = false;       // the head and the only item are the answer from any token on
  uint64_t fetched_order = 0;  // among those that were fetched to their end; 0: it was not yet
  bool has_expired = false;    // nobody can fetch it any more

  // The size of an item in memory.
  static size_t BytesOf(const std::string& item) { return sizeof(std::string) + item.size(); }
};

AsyncResults::AsyncResults(const AsyncLimits& limits, const Clock& clock)
    : limits_(limits), clock_(clock), worker_(4 * limits.results) {}

AsyncResults::~AsyncResults() {
  const MutexLock lock(mutex_);
  for (const auto& [token, entry] : entries_) entry->wake->Detach();
}

Result<std::string> AsyncResults::Start(std::string_view caller, const Begin& begin) {
  const auto entry = std::make_shared<Entry>();
  const std::weak_ptr<Entry> waiting = entry;
  entry->wake = std::make_shared<WakeHandle>(
      [this, waiting] { worker_.TryRun([this, waiting] { Poll(waiting); }); });
  entry->caller = caller;
  std::string token = NewToken();
  {
    const MutexLock lock(mutex_);
    Expire();
    while ((entries_.size() >= limits_.results || bytes_ >= limits_.bytes) && DropOldestFetched()) {
    }
    if (entries_.size() >= limits_.results || bytes_ >= limits_.bytes) {
      return ResourceExhausted(
          "too many answers wait to be fetched with x-starting-token; fetch those, or send the "
          "request again later");
    }
    entry->deadline = clock_.Now() + limits_.expiry;
    entries_.emplace(token, entry);
  }
  std::unique_ptr<Reply> reply = begin([wake = entry->wake] { wake->Wake(); });
  {
    const MutexLock lock(mutex_);
    entry->reply = std::move(reply);
  }
  entry->wake->Wake();
  return token;
}

// The worker's thread.
void AsyncResults::Poll(const std::weak_ptr<Entry>& waiting) {
  const EntryPtr entry = waiting.lock();
  if (entry == nullptr) return;
  entry->wake->Taken();
  Reply* reply = nullptr;
  {
    const MutexLock lock(mutex_);
    reply = entry->reply.get();
  }
  HttpHead head;
  std::string out;
  while (reply != nullptr) {
    out.clear();
    const Reply::Progress progress = reply->Poll(head, out);
    if (progress == Reply::Progress::kPending) return;
    std::unique_ptr<Reply> ended;  // after the lock: its end may cancel a request
    const MutexLock lock(mutex_);
    if (entry->has_expired) return;
    if (!std::exchange(entry->has_head, true)) entry->head = head;
    entry->is_done = progress != Reply::Progress::kMore;
    if (!Keep(*entry, out)) {
      Replace(*entry, 503, "the answers that wait to be fetched take too much memory");
    } else if (progress == Reply::Progress::kBroken) {
      Replace(*entry, 500, "the model failed before the answer's end");
    }
    if (entry->is_done) {
      ended = std::move(entry->reply);
      reply = nullptr;
    }
  }
}

bool AsyncResults::Keep(Entry& entry, const std::string& item) {
  if (item.empty()) return true;
  const size_t bytes = Entry::BytesOf(item);
  while (bytes_ + bytes > limits_.bytes && DropOldestFetched()) {
  }
  if (bytes_ + bytes > limits_.bytes) return false;
  entry.items.push_back(item);  // a copy has no spare capacity
  entry.bytes += bytes;
  bytes_ += bytes;
  return true;
}

// The error is short, and there is one for each answer at most: it is not counted.
void AsyncResults::Replace(Entry& entry, int status, std::string_view message) {
  bytes_ -= std::exchange(entry.bytes, 0);
  entry.head = HttpHead();
  entry.head.status = status;
  entry.items = {FormatServerError(status, message)};
  entry.is_error = true;
  entry.is_done = true;
}

bool AsyncResults::DropOldestFetched() {
  auto oldest = entries_.end();
  for (auto row = entries_.begin(); row != entries_.end(); ++row) {
    const uint64_t order = row->second->fetched_order;
    if (order == 0) continue;
    if (oldest == entries_.end() || order < oldest->second->fetched_order) oldest = row;
  }
  if (oldest == entries_.end()) return false;
  Leave(oldest->second);
  entries_.erase(oldest);
  return true;
}

void AsyncResults::Expire() {
  const Nanos now = clock_.Now();
  std::erase_if(entries_, [&](const auto& row) TANDEM_REQUIRES(mutex_) {
    if (row.second->deadline > now) return false;
    Leave(row.second);
    return true;
  });
}

void AsyncResults::Leave(const EntryPtr& entry) {
  entry->wake->Detach();
  entry->has_expired = true;
  bytes_ -= entry->bytes;
  // Its end may take a while, and there may be a poll under way.
  worker_.TryRun([entry] {});
}

int AsyncResults::num_running() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(
      std::ranges::count_if(entries_, [](const auto& row) { return !row.second->is_done; }));
}

Result<AsyncPart> AsyncResults::Fetch(std::string_view token, std::string_view caller,
                                      size_t most) {
  auto [id, begin] = Split(token);
  const MutexLock lock(mutex_);
  Expire();
  const auto found = entries_.find(id);
  if (found == entries_.end() || found->second->caller != caller) return Unknown(token);
  Entry& entry = *found->second;
  if (entry.is_error) begin = 0;
  if (begin > entry.items.size()) return Unknown(token);
  if (entry.fetched_order == 0) entry.deadline = clock_.Now() + limits_.expiry;
  AsyncPart part;
  const size_t end = begin + std::min(most, entry.items.size() - begin);
  for (size_t i = begin; i < end; ++i) part.body += entry.items[i];
  part.head = entry.head;
  part.is_pending = begin == end && !entry.is_done;
  const bool is_all = entry.is_done && end == entry.items.size();
  if (!is_all) part.next_token = fmt::format("{}.{}", id, end);
  if (is_all && entry.fetched_order == 0) entry.fetched_order = ++num_fetched_;
  return part;
}

}  // namespace tandem::serve::lmi
