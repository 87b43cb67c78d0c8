#include "serve/text_stream.h"

#include <utility>

#include "serve/active_request.h"

namespace tandem::serve {

TextStream::TextStream(std::shared_ptr<ActiveRequest> request, std::function<void()> leave)
    : request_(std::move(request)), leave_(std::move(leave)) {}

TextStream::~TextStream() { leave_(); }

bool TextStream::TryNext(TextEvent& event) {
  const MutexLock lock(request_->mutex);
  return request_->TakeLocked(event);
}

bool TextStream::Next(TextEvent& event) {
  MutexLock lock(request_->mutex);
  request_->ready.Wait(lock, [this]() TANDEM_REQUIRES(request_->mutex) {
    return request_->ended || !request_->pending.empty();
  });
  return request_->TakeLocked(event);
}

bool TextStream::over() const {
  const MutexLock lock(request_->mutex);
  return request_->ended && request_->pending.empty();
}

}  // namespace tandem::serve
