// TextStream: a client's end of one request. Events are taken after `wake` without blocking (a
// front end) or by waiting (a program). Destroying it before the end cancels the request. One
// thread at a time; the service outlives it. Untaken events are bounded: when a stream's reader
// leaves more than ServiceOptions::stream_bytes untaken, the request is cancelled with an error;
// events are never dropped silently.
#pragma once

#include <functional>
#include <memory>

#include "serve/text_request.h"

namespace tandem::serve {

struct ActiveRequest;

class TextStream {
 public:
  // `leave` is called once, when the reader is gone.
  TextStream(std::shared_ptr<ActiveRequest> request, std::function<void()> leave);
  ~TextStream();
  TextStream(const TextStream&) = delete;
  TextStream& operator=(const TextStream&) = delete;

  // The next event; false if there is none yet. After the last one (an error, or every choice has
  // finished) it always returns false.
  bool TryNext(TextEvent& event);
  // Waits; false when the request is over.
  bool Next(TextEvent& event);
  // True once every event has been taken.
  bool over() const;

 private:
  const std::shared_ptr<ActiveRequest> request_;
  const std::function<void()> leave_;
};

}  // namespace tandem::serve
