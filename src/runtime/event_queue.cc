#include "runtime/event_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/options.h"

namespace tandem {
namespace {

// Tokens a mailbox has room for initially: a few rounds with drafts.
constexpr size_t kInitialTokens = 32;

// Appends and leaves `from` empty.
template <typename T>
void Move(std::vector<T>& from, std::vector<T>& to) {
  std::ranges::move(from, std::back_inserter(to));
  from.clear();
}

}  // namespace

EventQueue::EventQueue(int32_t num_mailboxes, int64_t max_logits_bytes) {
  AddRoom(num_mailboxes, max_logits_bytes);
}

void EventQueue::AddRoom(int32_t num_mailboxes, int64_t max_logits_bytes) {
  const MutexLock lock(mutex_);
  TANDEM_CHECK(queued_ == 0, "room is added to a queue without events");
  const auto before = static_cast<int32_t>(mailboxes_.size());
  const int32_t after = before + num_mailboxes;
  mailboxes_.resize(static_cast<size_t>(after));
  queue_.resize(mailboxes_.size());
  head_ = 0;
  free_.reserve(mailboxes_.size());
  for (int32_t i = after - 1; i >= before; --i) free_.push_back(i);
  max_logits_bytes_ += max_logits_bytes;
}

Status EventQueue::Open(RequestId request, int32_t count, std::vector<int32_t>& mailboxes,
                        const LogitsBytes& logits) {
  const MutexLock lock(mutex_);
  if (free_.size() < static_cast<size_t>(count)) {
    return ResourceExhausted("Too many answers wait to be read, please try again later");
  }
  const int64_t bytes = logits.first + (count - 1) * logits.other;
  if (bytes > max_logits_bytes_ - logits_bytes_) {
    return ResourceExhausted(fmt::format(
        "The logits of this request take up to {}; of the {} for all open requests {} are taken, "
        "please try again later",
        FormatBytes(bytes), FormatBytes(max_logits_bytes_), FormatBytes(logits_bytes_)));
  }
  logits_bytes_ += bytes;
  for (int32_t choice = 0; choice < count; ++choice) {
    const int32_t index = free_.back();
    free_.pop_back();
    Mailbox& box = mailboxes_[static_cast<size_t>(index)];
    box.logits_bytes = choice == 0 ? logits.first : logits.other;
    Event& event = box.event;
    event.request = request;
    event.choice = choice;
    event.finish = FinishReason::kNone;
    event.error = Status();
    event.tokens.clear();
    event.tokens.reserve(kInitialTokens);
    event.context_logits.clear();
    event.generation_logits.clear();
    event.prompt_logprobs.clear();
    mailboxes.push_back(index);
  }
  return {};
}

void EventQueue::Abandon(std::span<const int32_t> mailboxes) {
  const MutexLock lock(mutex_);
  for (const int32_t mailbox : mailboxes) GiveBack(mailbox);
}

void EventQueue::GiveBack(int32_t mailbox) {
  logits_bytes_ -= std::exchange(mailboxes_[static_cast<size_t>(mailbox)].logits_bytes, 0);
  free_.push_back(mailbox);
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
  if (posting.context_logits != nullptr) Move(*posting.context_logits, box.event.context_logits);
  if (posting.drawn_logits != nullptr) Move(*posting.drawn_logits, box.event.generation_logits);
  if (posting.prompt_logprobs != nullptr) Move(*posting.prompt_logprobs, box.event.prompt_logprobs);
  box.event.usage = *posting.usage;
  box.event.finish = posting.finish;
  if (posting.finish == FinishReason::kEnd && posting.end != nullptr) box.event.end = *posting.end;
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
  event.context_logits.clear();
  event.generation_logits.clear();
  event.prompt_logprobs.clear();
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
    GiveBack(index);
  } else {
    box.event.request = event.request;
    box.event.choice = event.choice;
    box.event.finish = FinishReason::kNone;
  }
  return true;
}

}  // namespace tandem
