// EventQueue: the engine's events for the service. One mailbox for every open choice, so the queue
// is bounded by the number of open choices, and the bound is checked when a request is submitted.
// Events of a choice that was not read yet coalesce: a slow reader gets more tokens at once, and
// the loop never blocks. The bytes of logits that a request may get, and of those it sent, are
// reserved when it is submitted, until the last event of each of its choices has been read, so that
// the logits in the queue are bounded too. Engines may share a queue: their requests have different
// ids. Open and Pop on any thread (one reader), Push on the engines'.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "runtime/request/request.h"
#include "runtime/request/validate_request.h"

namespace tandem {

// One step's news of one choice. Views: they are read before Push returns.
struct Posting {
  int32_t mailbox = 0;
  std::span<const SampledToken> tokens;
  std::vector<LogitsRow>* context_logits = nullptr;      // moved from, unless null
  std::vector<LogitsRow>* drawn_logits = nullptr;        // likewise
  std::vector<SampledToken>* prompt_logprobs = nullptr;  // likewise
  const SampledToken* end = nullptr;                     // copied with kEnd
  const Usage* usage = nullptr;
  FinishReason finish = FinishReason::kNone;  // other than kNone: the mailbox's last event
  const Status* error = nullptr;
};

class EventQueue {
 public:
  explicit EventQueue(int32_t num_mailboxes, int64_t max_logits_bytes = 0);
  // Before there are events: room for the choices of one more engine, which shares the queue.
  void AddRoom(int32_t num_mailboxes, int64_t max_logits_bytes);

  // Takes `count` mailboxes for the choices of a request, and room for their logits, all or
  // nothing; a mailbox is given back when its last event has been read. RESOURCE_EXHAUSTED says
  // what there is too much of.
  Status Open(RequestId request, int32_t count, std::vector<int32_t>& mailboxes,
              const LogitsBytes& logits = {});

  // Gives back mailboxes that received nothing: the request was refused after all.
  void Abandon(std::span<const int32_t> mailboxes);

  // All news of a step at once: one lock and one wake-up of the reader, whatever the number of
  // choices. Allocates only when more tokens wait in a mailbox than ever before.
  void Push(std::span<const Posting> postings);
  void Push(int32_t mailbox, std::span<const SampledToken> tokens, const Usage& usage,
            FinishReason finish = FinishReason::kNone, const Status& error = {}) {
    const Posting posting = {
        .mailbox = mailbox, .tokens = tokens, .usage = &usage, .finish = finish, .error = &error};
    Push(std::span(&posting, 1));
  }

  // The oldest event, waiting up to `timeout`; false when there is none. Trades buffers with
  // `event`.
  bool Pop(Event& event, Nanos timeout);

 private:
  struct Mailbox {
    Event event;
    bool queued = false;
    int64_t logits_bytes = 0;  // reserved
  };

  bool PushLocked(const Posting& posting) TANDEM_REQUIRES(mutex_);
  void GiveBack(int32_t mailbox) TANDEM_REQUIRES(mutex_);

  Mutex mutex_;
  Condition ready_;
  int64_t max_logits_bytes_ TANDEM_GUARDED_BY(mutex_) = 0;
  std::vector<Mailbox> mailboxes_ TANDEM_GUARDED_BY(mutex_);
  std::vector<int32_t> free_ TANDEM_GUARDED_BY(mutex_);
  int64_t logits_bytes_ TANDEM_GUARDED_BY(mutex_) = 0;  // reserved
  // A ring of mailboxes with an unread event, each at most once.
  std::vector<int32_t> queue_ TANDEM_GUARDED_BY(mutex_);
  size_t head_ TANDEM_GUARDED_BY(mutex_) = 0;
  size_t queued_ TANDEM_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
