#include "serve/text_stream.h"

#include <utility>

#include "serve/active_request.h"

namespace tandem::serve {
namespace {

bool TakeLocked(ActiveRequest& request, TextEvent& event) TANDEM_REQUIRES(request.mutex) {
  if (request.pending.empty()) return false;
  event = std::move(request.pending.front());
  request.pending.pop_front();
  if (request.pending.empty()) request.pending_bytes = 0;
  return true;
}

}  // namespace

TextStream::TextStream(std::shared_ptr<ActiveRequest> request, std::function<void()> leave)
    : request_(std::move(request)), leave_(std::move(leave)) {}

TextStream::~TextStream() { leave_(); }

bool TextStream::TryNext(TextEvent& event) {
  const MutexLock lock(request_->mutex);
  return TakeLocked(*request_, event);
}

bool TextStream::Next(TextEvent& event) {
  MutexLock lock(request_->mutex);
  request_->ready.Wait(lock, [this]() TANDEM_REQUIRES(request_->mutex) {
    return request_->ended || !request_->pending.empty();
  });
  return TakeLocked(*request_, event);
}

bool TextStream::over() const {
  const MutexLock lock(request_->mutex);
  return request_->ended && request_->pending.empty();
}

}  // namespace tandem::serve
