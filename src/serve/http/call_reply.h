// CallReply: a GenerateCall as an HTTP reply, whole or as server-sent events. It holds the code
// common to the front ends: polling within a byte limit, the head, and errors: before the first
// byte an error sets the status, later it is the last event. A CallWriter writes the messages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/generate_call.h"
#include "serve/http/message.h"

namespace tandem::serve {

// The wire format of one call. In a stream every message is an event's data; otherwise the single
// message is the body. Owned by the reply.
class CallWriter {
 public:
  virtual ~CallWriter() = default;
  // Appends the messages for an event of a streamed call; there may be none.
  virtual void WriteEvent(const GenerateCall& call, TextEvent event,
                          std::vector<std::string>& messages) = 0;
  // Appends the final messages of a complete call. Headers may be added to `head`; they are sent
  // unless the head has already been sent.
  virtual void WriteEnd(const GenerateCall& call, HttpHead& head,
                        std::vector<std::string>& messages) = 0;
  virtual HttpHead ErrorHead(const Status& error) const = 0;
  virtual std::string FormatError(const Status& error) const = 0;
};

enum class ReplyForm : uint8_t { kWhole, kEvents };

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<GenerateCall> call,
                                     std::unique_ptr<CallWriter> writer, ReplyForm form);

}  // namespace tandem::serve
