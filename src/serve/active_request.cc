#include "serve/active_request.h"

#include <iterator>
#include <utility>

namespace tandem::serve {
namespace {

constexpr size_t kPieceBytes = 16;  // counted for a piece in addition to its text

// Without logits, which the engine bounds for each request.
size_t CountBytes(const TextEvent& event) {
  size_t bytes = 0;
  for (const TokenPiece& piece : event.pieces) {
    bytes += kPieceBytes + piece.text.size() + piece.top.size() * sizeof(TopLogprob);
  }
  return bytes;
}

}  // namespace

void ActiveRequest::AddLocked(TextEvent event) {
  pending_bytes += CountBytes(event);
  if (event.finish != TextFinish::kNone && ++num_finished == num_choices) ended = true;
  for (TextEvent& waiting : pending) {
    if (waiting.choice != event.choice || !waiting.error.ok()) continue;
    waiting.pieces.insert(waiting.pieces.end(), std::make_move_iterator(event.pieces.begin()),
                          std::make_move_iterator(event.pieces.end()));
    if (!event.context_logits.empty()) waiting.context_logits = std::move(event.context_logits);
    if (event.prompt != nullptr) waiting.prompt = std::move(event.prompt);
    waiting.finish = event.finish;
    if (event.end) waiting.end = std::move(event.end);
    waiting.usage = event.usage;
    return;
  }
  pending.push_back(std::move(event));
}

bool ActiveRequest::Deliver(TextEvent event) {
  bool in_time = true;
  {
    const MutexLock lock(mutex);
    if (ended) return true;
    AddLocked(std::move(event));
    if (max_bytes > 0 && pending_bytes > max_bytes && !ended) {
      in_time = false;
      TextEvent last;
      last.error = ResourceExhausted("the client reads too slowly; the request was cancelled");
      pending.push_back(std::move(last));
      ended = true;
    }
  }
  ready.NotifyAll();
  if (wake) wake();
  return in_time;
}

bool ActiveRequest::TakeLocked(TextEvent& event) {
  if (pending.empty()) return false;
  event = std::move(pending.front());
  pending.pop_front();
  pending_bytes -= CountBytes(event);
  return true;
}

bool ActiveRequest::Fail(Status error) {
  {
    const MutexLock lock(mutex);
    if (ended) return false;
    TextEvent last;
    last.error = std::move(error);
    pending.push_back(std::move(last));
    ended = true;
  }
  ready.NotifyAll();
  if (wake) wake();
  return true;
}

bool ActiveRequest::Abandon() {
  const MutexLock lock(mutex);
  pending.clear();
  pending_bytes = 0;
  return !std::exchange(ended, true);
}

}  // namespace tandem::serve
