#include "runtime/event_queue.h"

#include <utility>

#include "base/check.h"

namespace tandem {
namespace {

// Tokens a mailbox has room for initially: a few rounds with drafts.
constexpr size_t kInitialTokens = 32;

}  // namespace

EventQueue::EventQueue(int32_t num_mailboxes)
    : mailboxes_(static_cast<size_t>(num_mailboxes)), queue_(static_cast<size_t>(num_mailboxes)) {
  free_.reserve(mailboxes_.size());
  for (int32_t i = num_mailboxes - 1; i >= 0; --i) free_.push_back(i);
}

bool EventQueue::Open(RequestId request, int32_t count, std::vector<int32_t>& mailboxes) {
  const MutexLock lock(mutex_);
  if (free_.size() < static_cast<size_t>(count)) return false;
  for (int32_t choice = 0; choice < count; ++choice) {
    const int32_t index = free_.back();
    free_.pop_back();
    Event& event = mailboxes_[static_cast<size_t>(index)].event;
    event.request = request;
    event.choice = choice;
    event.finish = FinishReason::kNone;
    event.error = Status();
    event.tokens.clear();
    event.tokens.reserve(kInitialTokens);
    mailboxes.push_back(index);
  }
  return true;
}

void EventQueue::Abandon(std::span<const int32_t> mailboxes) {
  const MutexLock lock(mutex_);
  free_.insert(free_.end(), mailboxes.begin(), mailboxes.end());
}

void EventQueue::Push(std::span<const Posting> postings) {
  bool wake = false;
  {
    const MutexLock lock(mutex_);
    for (const Posting& posting : postings) wake = PushLocked(posting) || wake;
  }
  if (wake) ready_.NotifyOne();
}

// True if the mailbox had no event waiting.
bool EventQueue::PushLocked(const Posting& posting) {
  Mailbox& box = mailboxes_[static_cast<size_t>(posting.mailbox)];
  TANDEM_CHECK(box.event.finish == FinishReason::kNone, "an event after the last one");
  box.event.tokens.insert(box.event.tokens.end(), posting.tokens.begin(), posting.tokens.end());
  box.event.usage = *posting.usage;
  box.event.finish = posting.finish;
  box.event.error = *posting.error;
  if (box.queued) return false;
  box.queued = true;
  queue_[(head_ + queued_++) % queue_.size()] = posting.mailbox;
  return true;
}

bool EventQueue::Pop(Event& event, Nanos timeout) {
  // Outside the lock, so that the engine never waits for this memory.
  event.tokens.clear();
  event.tokens.reserve(kInitialTokens);
  MutexLock lock(mutex_);
  if (!ready_.WaitFor(lock, timeout, [this]() TANDEM_REQUIRES(mutex_) { return queued_ > 0; }))
    return false;
  const int32_t index = queue_[head_];
  head_ = (head_ + 1) % queue_.size();
  --queued_;
  Mailbox& box = mailboxes_[static_cast<size_t>(index)];
  box.queued = false;
  std::swap(event, box.event);
  if (event.finish != FinishReason::kNone) {
    free_.push_back(index);
  } else {
    box.event.request = event.request;
    box.event.choice = event.choice;
    box.event.finish = FinishReason::kNone;
  }
  return true;
}

}  // namespace tandem
