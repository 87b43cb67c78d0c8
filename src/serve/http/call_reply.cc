#include "serve/http/call_reply.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace tandem::serve {
namespace {

constexpr size_t kPollBytes = 32 << 10;  // a poll takes no more events once it has this many

std::string_view UsualType(ReplyForm form) {
  switch (form) {
    case ReplyForm::kEvents:
      return "text/event-stream; charset=utf-8";
    case ReplyForm::kLines:
      return "application/jsonlines";
    case ReplyForm::kWhole:
    case ReplyForm::kPieces:
      break;
  }
  return "application/json";
}

class CallReply final : public Reply {
 public:
  CallReply(std::unique_ptr<MessageSource> source, ReplyStyle style)
      : source_(std::move(source)), style_(std::move(style)) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    if (has_expired_) {
      return Fail(DeadlineExceeded(fmt::format("nothing came for {} s", InSeconds(Patience()))),
                  head, out);
    }
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
          return Fail(error, head, out);
      }
      Flush(out);
    }
    return Progress::kMore;
  }

  // A line that begins with a colon is a comment to every reader of events.
  bool KeepAlive(HttpHead& head, std::string& out) override {
    has_expired_ = Patience() > Nanos(0);
    if (has_expired_ || style_.form != ReplyForm::kEvents) return false;
    Begin(head);
    out += ": keep-alive\n\n";
    return true;
  }

  std::optional<Nanos> patience() const override {
    return Patience() > Nanos(0) ? std::optional(Patience()) : std::nullopt;
  }

 private:
  Nanos Patience() const { return begun_ ? style_.next_patience : style_.first_patience; }

  void SetType(HttpHead& head) const {
    head.content_type = style_.content_type.empty() ? UsualType(style_.form) : style_.content_type;
  }

  void Begin(HttpHead& head) {
    if (std::exchange(begun_, true)) return;
    SetType(head);
    if (style_.form == ReplyForm::kWhole) return;
    head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  }

  Progress Fail(const Status& error, HttpHead& head, std::string& out) {
    if (begun_) {
      head.log_note = error.message();
      messages_.push_back(source_->FormatError(error));
      if (source_->BreaksOnError()) return Progress::kBroken;
      Flush(out);
      return Progress::kLast;
    }
    head = source_->ErrorHead(error);
    if (style_.form == ReplyForm::kWhole || !source_->ErrorIsEvent()) {
      out = source_->FormatError(error);
      return Progress::kLast;
    }
    SetType(head);
    messages_.push_back(source_->FormatError(error));
    Flush(out);
    return Progress::kLast;
  }

  void Flush(std::string& out) {
    for (const std::string& message : messages_) {
      if (style_.form != ReplyForm::kEvents) {
        out += message;
        if (style_.form == ReplyForm::kLines) out += '\n';
        continue;
      }
      const std::string_view name = source_->EventName(message);
      if (!name.empty()) out.append("event: ").append(name).append("\n");
      out.append("data: ").append(message).append("\n\n");
    }
    messages_.clear();
  }

  const std::unique_ptr<MessageSource> source_;
  const ReplyStyle style_;
  bool has_expired_ = false;           // nothing came for too long
  bool begun_ = false;                 // the head is decided
  std::vector<std::string> messages_;  // of one event, not yet copied to `out`
};

}  // namespace

std::unique_ptr<Reply> MakeCallReply(std::unique_ptr<MessageSource> source, ReplyStyle style) {
  return std::make_unique<CallReply>(std::move(source), std::move(style));
}

}  // namespace tandem::serve
