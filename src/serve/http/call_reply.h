// CallReply: a call in progress as an HTTP reply, whole or as server-sent events. It holds the code
// common to the front ends: polling within a byte limit, the head, and errors: before the first
// byte an error sets the status, later it is only the last event. A stream that waits long is kept
// alive by comments; the first of them begins the response.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/call_news.h"
#include "serve/http/message.h"

namespace tandem::serve {

// The messages of one call. In a stream every message is an event's data; otherwise they are the
// body, one after the other. Owned by the reply.
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
  // Whether an error that comes before any message of a stream is an event too.
  virtual bool ErrorIsEvent() const { return false; }
};

enum class ReplyForm : uint8_t { kWhole, kEvents };

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<MessageSource> source, ReplyForm form);

}  // namespace tandem::serve
