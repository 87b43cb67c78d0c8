#include "serve/http/call_reply.h"

#include <utility>

#include "base/log.h"

namespace tandem::serve {
namespace {

constexpr const char* kEventStream = "text/event-stream; charset=utf-8";
constexpr size_t kPollBytes = 32 << 10;  // a poll takes no more events once it has this many

class CallReply final : public Reply {
 public:
  CallReply(std::unique_ptr<MessageSource> source, ReplyForm form)
      : source_(std::move(source)), form_(form) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    while (out.size() < kPollBytes) {
      HttpHead added;
      Status error;
      const CallNews news = source_->Next(added, messages_, error);
      switch (news) {
        case CallNews::kNone:
          return out.empty() ? Progress::kPending : Progress::kMore;
        case CallNews::kEvent:
          if (!messages_.empty()) Begin(head);
          break;
        case CallNews::kDone:
          Begin(head);
          head.headers.insert(head.headers.end(), added.headers.begin(), added.headers.end());
          if (LogEnabled(LogLevel::kDebug)) head.log_note = source_->Summary();
          Flush(out);
          return Progress::kLast;
        case CallNews::kFailed:
          Fail(error, head, out);
          return Progress::kLast;
      }
      Flush(out);
    }
    return Progress::kMore;
  }

  // A line that begins with a colon is a comment to every reader of events.
  bool KeepAlive(HttpHead& head, std::string& out) override {
    if (form_ == ReplyForm::kWhole) return false;
    Begin(head);
    out += ": keep-alive\n\n";
    return true;
  }

 private:
  void Begin(HttpHead& head) {
    if (std::exchange(begun_, true) || form_ == ReplyForm::kWhole) return;
    head.content_type = kEventStream;
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  }

  void Fail(const Status& error, HttpHead& head, std::string& out) {
    if (begun_) {
      head.log_note = error.message();
      messages_.push_back(source_->FormatError(error));
      return Flush(out);
    }
    head = source_->ErrorHead(error);
    if (form_ == ReplyForm::kWhole || !source_->ErrorIsEvent()) {
      out = source_->FormatError(error);
      return;
    }
    head.content_type = kEventStream;
    messages_.push_back(source_->FormatError(error));
    Flush(out);
  }

  void Flush(std::string& out) {
    for (const std::string& message : messages_) {
      if (form_ == ReplyForm::kWhole) {
        out += message;
        continue;
      }
      const std::string_view name = source_->EventName(message);
      if (!name.empty()) out.append("event: ").append(name).append("\n");
      out.append("data: ").append(message).append("\n\n");
    }
    messages_.clear();
  }

  const std::unique_ptr<MessageSource> source_;
  const ReplyForm form_;
  bool begun_ = false;                 // the head is decided
  std::vector<std::string> messages_;  // of one event, not yet copied to `out`
};

}  // namespace

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<MessageSource> source, ReplyForm form) {
  return std::make_unique<CallReply>(std::move(source), form);
}

}  // namespace tandem::serve
