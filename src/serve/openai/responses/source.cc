#include "serve/openai/responses/source.h"

#include <optional>
#include <utility>
#include <vector>

#include "serve/openai/answers/answer_parser.h"
#include "serve/openai/completions/errors.h"
#include "serve/openai/responses/answer.h"
#include "serve/openai/responses/object.h"
#include "serve/unix_time.h"

namespace tandem::serve::openai {
namespace {

// The answer is read token by token, so that each token's log-probability comes with its text. A
// response that is not streamed is made in the same way, and its events are dropped.
class ResponsesSource final : public MessageSource {
 public:
  ResponsesSource(ResponsesCall call, const std::string& request_id, AnswerPlan plan,
                  std::unique_ptr<GenerateCall> generate)
      : is_streamed_(call.call.stream),
        header_{"resp_" + request_id, generate->model().name, UnixSeconds(), std::move(call.body)},
        plan_(std::move(plan)),
        call_(std::move(generate)),
        answer_(request_id, call.call.logprobs, call_->model().service->codec()) {}

  CallNews Next(HttpHead&, std::vector<std::string>& messages, Status& error) override {
    TextEvent event;
    const CallNews news = call_->Next(event);
    std::vector<std::string> events;
    if (news == CallNews::kFailed) {
      error = std::move(event.error);
      if (has_begun_) Fail(error, events);
    } else if (news == CallNews::kEvent) {
      AddEvent(event, events);
    } else if (news == CallNews::kDone) {
      End(events);
    }
    if (is_streamed_) {
      messages.insert(messages.end(), std::make_move_iterator(events.begin()),
                      std::make_move_iterator(events.end()));
    } else if (news == CallNews::kDone) {
      JsonWriter writer(messages.emplace_back());
      WriteResponseObject(header_, state_, answer_, writer);
    }
    return news;
  }

  HttpHead ErrorHead(const Status& error) const override { return openai::ErrorHead(error); }
  std::string Summary() const override { return call_->Summary(); }
  std::string FormatError(const Status& error) const override {
    if (!is_streamed_ || !has_begun_) return FormatStatus(error);
    return last_error_;
  }
  std::string_view EventName(std::string_view message) const override {
    return EventWriter::TypeOf(message);
  }

 private:
  void AddEvent(const TextEvent& event, std::vector<std::string>& events) {
    if (!std::exchange(has_begun_, true)) {
      AddState("response.created", events);
      AddState("response.in_progress", events);
    }
    if (!parser_) parser_.emplace(plan_.NewParser(event.reasoning));
    for (const TokenPiece& piece : event.pieces) {
      pending_.push_back(piece);
      const bool was_reasoning = parser_->in_reasoning();
      const std::vector<AnswerPart> parts = parser_->Push(piece.text);
      if (was_reasoning || parser_->in_reasoning()) ++state_.reasoning_tokens;
      AddParts(parts, events);
    }
    if (event.finish == TextFinish::kNone) return;
    AddParts(parser_->Flush(), events);
    finish_ = event.finish;
  }

  // The tokens that came since the last part belong to the first of these.
  void AddParts(std::vector<AnswerPart> parts, std::vector<std::string>& events) {
    for (AnswerPart& part : parts) {
      if (part.kind == PartKind::kCall) part.id = plan_.NewCallId();
      answer_.Add(part, std::exchange(pending_, {}), writer_, events);
    }
  }

  void End(std::vector<std::string>& events) {
    const bool is_whole = finish_ == TextFinish::kStop;
    answer_.End(is_whole, writer_, events);
    state_.status = is_whole ? ResponseStatus::kCompleted : ResponseStatus::kIncomplete;
    state_.usage = call_->usage();
    AddState(is_whole ? "response.completed" : "response.incomplete", events);
  }

  // The response ends with an event for the error and one for itself, which FormatError returns.
  void Fail(const Status& error, std::vector<std::string>& events) {
    writer_.Add(
        "error",
        [&](JsonWriter& event) {
          WriteErrorMembers(error, event);
          event.Key("param");
          error.field().empty() ? event.Null() : event.String(error.field());
        },
        events);
    state_.status = ResponseStatus::kFailed;
    state_.error = error;
    std::vector<std::string> last;
    AddState("response.failed", last);
    last_error_ = std::move(last.front());
  }

  void AddState(std::string_view type, std::vector<std::string>& events) {
    writer_.Add(
        type,
        [&](JsonWriter& event) {
          event.Key("response");
          WriteResponseObject(header_, state_, answer_, event);
        },
        events);
  }

  const bool is_streamed_;
  const ResponsesHeader header_;
  const AnswerPlan plan_;
  std::optional<AnswerParser> parser_;  // from the first event on
  const std::unique_ptr<GenerateCall> call_;
  ResponsesAnswer answer_;
  EventWriter writer_;
  ResponsesState state_;
  std::vector<TokenPiece> pending_;  // whose text the parser holds back
  TextFinish finish_ = TextFinish::kNone;
  bool has_begun_ = false;
  std::string last_error_;
};

}  // namespace

std::unique_ptr<MessageSource> MakeResponsesSource(ResponsesCall call,
                                                   const std::string& request_id, AnswerPlan plan,
                                                   std::unique_ptr<GenerateCall> generate) {
  return std::make_unique<ResponsesSource>(std::move(call), request_id, std::move(plan),
                                           std::move(generate));
}

}  // namespace tandem::serve::openai
