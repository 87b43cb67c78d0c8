#include "serve/http/call_reply.h"

#include <utility>

namespace tandem::serve {
namespace {

constexpr size_t kPollBytes = 32 << 10;  // a poll takes no more events once it has this many

class CallReply final : public Reply {
 public:
  CallReply(std::unique_ptr<GenerateCall> call, std::unique_ptr<CallWriter> writer, ReplyForm form)
      : call_(std::move(call)), writer_(std::move(writer)), form_(form) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    while (out.size() < kPollBytes) {
      switch (call_->Next(event)) {
        case CallNews::kNone:
          return out.empty() ? Progress::kPending : Progress::kMore;
        case CallNews::kEvent:
          writer_->WriteEvent(*call_, std::move(event), messages_);
          if (!messages_.empty()) Begin(head);
          break;
        case CallNews::kDone:
          Begin(head);
          writer_->WriteEnd(*call_, head, messages_);
          Flush(out);
          return Progress::kLast;
        case CallNews::kFailed:
          Fail(event.error, head, out);
          return Progress::kLast;
      }
      Flush(out);
    }
    return Progress::kMore;
  }

 private:
  void Begin(HttpHead& head) {
    if (std::exchange(begun_, true) || form_ == ReplyForm::kWhole) return;
    head.content_type = "text/event-stream; charset=utf-8";
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  }

  void Fail(const Status& error, HttpHead& head, std::string& out) {
    if (begun_) {
      messages_.push_back(writer_->FormatError(error));
      return Flush(out);
    }
    head = writer_->ErrorHead(error);
    out = writer_->FormatError(error);
  }

  void Flush(std::string& out) {
    for (const std::string& message : messages_) {
      if (form_ == ReplyForm::kWhole) {
        out += message;
      } else {
        out.append("data: ").append(message).append("\n\n");
      }
    }
    messages_.clear();
  }

  const std::unique_ptr<GenerateCall> call_;
  const std::unique_ptr<CallWriter> writer_;
  const ReplyForm form_;
  bool begun_ = false;                 // the head is decided
  std::vector<std::string> messages_;  // of one event, not yet copied to `out`
};

}  // namespace

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<GenerateCall> call,
                                     std::unique_ptr<CallWriter> writer, ReplyForm form) {
  return std::make_unique<CallReply>(std::move(call), std::move(writer), form);
}

}  // namespace tandem::serve
