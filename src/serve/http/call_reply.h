// CallReply: a call in progress as an HTTP reply, whole or as a stream. It holds the code common to
// the front ends: polling within a byte limit, the head, and errors: before the first byte an error
// sets the status, later it is only the last message, or cuts the response off. A stream of events
// that waits long is kept alive by comments, the first of which begins the response; or a call that
// waits long ends.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "serve/call_news.h"
#include "serve/http/message.h"

namespace tandem::serve {

// The messages of one call. In a stream of events every message is an event's data, in one of lines
// a line; otherwise they are the body, one after the other. Owned by the reply.
class MessageSource {
 public:
  virtual ~MessageSource() = default;
  // Never blocks. kEvent and kDone append the messages that there are, possibly none; kFailed fills
  // `error`. Headers may be added to `head` with kDone; they are sent unless the head has already
  // been sent.
  virtual CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) = 0;
  virtual HttpHead ErrorHead(const Status& error) const = 0;
  virtual std::string FormatError(const Status& error) const = 0;
  // What the log says of the call once it is over: model, numbers of tokens, times.
  virtual std::string Summary() const { return {}; }
  // The name of a message of a stream as an event; empty: it has none.
  virtual std::string_view EventName(std::string_view /*message*/) const { return {}; }
  // Whether a stream cannot tell an error once it has begun, because its messages are plain text:
  // the response is then cut off, and the text of FormatError is not sent.
  virtual bool BreaksOnError() const { return false; }
  // Whether an error that comes before any message of a stream is an event too.
  virtual bool ErrorIsEvent() const { return false; }
};

enum class ReplyForm : uint8_t {
  kWhole,
  kEvents,  // server-sent events
  kLines,   // a message ends with a line end
  kPieces,  // messages as they are, each as soon as it is there
};

struct ReplyStyle {
  ReplyForm form = ReplyForm::kWhole;
  std::string content_type = {};  // of an answer, and of a stream's errors; empty: the form's usual
  // Without news for that long the call ends with DEADLINE_EXCEEDED: before the response has begun,
  // and after. 0: it waits for ever, and a stream of events is kept alive.
  Nanos first_patience{0};
  Nanos next_patience{0};
};

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<MessageSource> source, ReplyStyle style);
inline std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<MessageSource> source, ReplyForm form) {
  return MakeCallReply(std::move(source), ReplyStyle{.form = form});
}

}  // namespace tandem::serve
