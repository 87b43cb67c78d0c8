#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "serve/lmi/answer_form.h"
#include "serve/lmi/errors.h"

namespace tandem::serve::lmi {
namespace {

constexpr float kNoLogprob = std::numeric_limits<float>::quiet_NaN();

// An answer that is sent as it comes: a line for each token, the object in pieces, or the text; or
// of a list of inputs, whatever the formatter, lines with a token of each.
class StreamSource final : public MessageSource {
 public:
  StreamSource(AnswerForm form, std::unique_ptr<GenerateCall> generate)
      : form_(std::move(form)),
        generate_(std::move(generate)),
        queued_(form_.call.is_list ? form_.call.inputs.size() : 0) {}

  CallNews Next(HttpHead&, std::vector<std::string>& messages, Status& error) override {
    const CallNews news =
        form_.call.is_list ? NextOfList(messages, error) : NextOfOne(messages, error);
    has_begun_ = has_begun_ || !messages.empty();
    return news;
  }

  HttpHead ErrorHead(const Status& error) const override {
    return lmi::ErrorHead(error, *form_.settings);
  }

  std::string FormatError(const Status& error) const override {
    if (!has_begun_) return FormatFault(error, *form_.settings);
    const std::string reason = Explain(error);
    if (form_.call.is_list) return FormatListError(reason);
    switch (form_.call.formatter) {
      case OutputFormatter::kNone:
        return {};
      case OutputFormatter::kJson:
        return form_.dialect.tgi_compat ? R"(", "details": {"finish_reason": "error"}}])"
                                        : R"(", "details": {"finish_reason": "error"}})";
      default:
        return FormatLastError(reason);
    }
  }

  bool BreaksOnError() const override {
    return !form_.call.is_list && form_.call.formatter == OutputFormatter::kNone;
  }

 private:
  const TextCodec& codec() const { return generate_->model().service->codec(); }

  CallNews NextOfOne(std::vector<std::string>& messages, Status& error) {
    const OutputFormatter formatter = form_.call.formatter;
    TextEvent event;
    const CallNews news = generate_->Next(event);
    if (news == CallNews::kFailed) {
      error = std::move(event.error);
    } else if (news == CallNews::kDone) {
      // The asynchronous handler's last line is empty.
      const bool is_lines = formatter == OutputFormatter::kJsonLines;
      if (is_lines && IsAsynchronous(form_.dialect)) messages.emplace_back();
    } else if (news == CallNews::kEvent) {
      const bool is_pieces =
          formatter == OutputFormatter::kJson || formatter == OutputFormatter::kNone;
      is_pieces ? WritePieces(std::move(event), messages) : WriteLines(event, messages);
    }
    return news;
  }

  // Everything that is there goes into as few lines as it can.
  CallNews NextOfList(std::vector<std::string>& messages, Status& error) {
    if (!failure_.ok()) {
      error = failure_;
      return CallNews::kFailed;
    }
    TextEvent event;
    CallNews news = generate_->Next(event);
    for (; news == CallNews::kEvent; news = generate_->Next(event)) QueueTexts(event);
    WriteQueued(messages);
    if (news == CallNews::kFailed) {
      if (messages.empty()) {
        error = std::move(event.error);
        return news;
      }
      failure_ = std::move(event.error);  // after the texts that came before it
      return CallNews::kEvent;
    }
    // Where every first token ended its answer.
    if (news == CallNews::kDone && !has_begun_ && messages.empty()) WriteNext(messages);
    return news == CallNews::kNone && !messages.empty() ? CallNews::kEvent : news;
  }

  // --- A line for each token ---

  void WriteLines(const TextEvent& event, std::vector<std::string>& messages) {
    const bool is_last = event.finish != TextFinish::kNone;
    for (size_t i = 0; i < event.pieces.size(); ++i) {
      const TokenPiece& piece = event.pieces[i];
      const bool ends = is_last && !event.end && i + 1 == event.pieces.size();
      Count(piece);
      messages.push_back(FormatLine(TokenOf(piece), &piece, ends ? &event : nullptr));
    }
    if (event.end) {
      Count(*event.end);
      messages.push_back(FormatLine(TokenOf(*event.end, /*is_special=*/true), &*event.end, &event));
    } else if (is_last && event.pieces.empty()) {
      messages.push_back(FormatLine({-1, "", kNoLogprob, /*is_special=*/true}, nullptr, &event));
    }
  }

  void Count(const TokenPiece& piece) {
    text_ += piece.text;
    if (piece.token >= 0) ++num_tokens_;
  }

  // `last`: the event that ends the answer with this token, or null.
  std::string FormatLine(const ShownToken& token, const TokenPiece* piece,
                         const TextEvent* last) const {
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    writer.BeginObject();
    const bool is_asynchronous = IsAsynchronous(form_.dialect);
    if (is_asynchronous) writer.Key("index").Int(0);
    writer.Key("token");
    WriteToken(token, form_.dialect, writer);
    if (form_.call.top_tokens > 0 && piece != nullptr) {
      writer.Key("top_tokens");
      WriteTopTokens(*piece, form_.call.top_tokens, codec(), form_.dialect, writer);
    }
    if (last != nullptr) {
      writer.Key("generated_text").String(std::string(PrefixOf(form_, 0)) + text_);
      if (form_.call.details) WriteLastDetails(*last, writer);
    }
    if (is_asynchronous && last == nullptr) writer.Key("generated_text").Null();
    if (is_asynchronous && (last == nullptr || !form_.call.details)) writer.Key("details").Null();
    writer.EndObject();
    return out;
  }

  void WriteLastDetails(const TextEvent& last, JsonWriter& writer) const {
    writer.Key("details").BeginObject();
    writer.Key("finish_reason").String(ReasonOf(form_, last.finish, last.end, codec()));
    const bool is_old = form_.dialect.generation == Generation::k026 && !form_.dialect.tgi_compat;
    if (IsAsynchronous(form_.dialect)) {
      writer.Key("seed").Int(static_cast<int64_t>(last.usage.seed));
      writer.Key("generated_tokens").Int(num_tokens_);
      writer.Key("input_length").Int(last.usage.prompt_tokens);
    } else if (!is_old) {
      writer.Key("generated_tokens").Int(num_tokens_);
      writer.Key("inputs").String(form_.call.inputs.front());
    }
    WritePrefill(form_, generate_->answers().front().prompt.get(), writer);
    writer.EndObject();
  }

  // --- The object, or the text, in pieces ---

  void WritePieces(TextEvent event, std::vector<std::string>& messages) {
    std::string out;
    const bool is_json = form_.call.formatter == OutputFormatter::kJson;
    std::string shown;
    if (!has_begun_) {
      if (is_json)
        out += form_.dialect.tgi_compat ? R"([{"generated_text": ")" : R"({"generated_text": ")";
      shown = PrefixOf(form_, 0);
    }
    for (const TokenPiece& piece : event.pieces) shown += piece.text;
    if (is_json) {
      std::string literal;
      AppendJsonString(shown, literal);
      out.append(literal, 1, literal.size() - 2);
    } else {
      out += shown;
    }
    const TextFinish finish = event.finish;
    if (is_json) answer_.Add(std::move(event), form_.call.details);
    if (is_json && finish != TextFinish::kNone) out += FormatEnd();
    if (!out.empty()) messages.push_back(std::move(out));
  }

  std::string FormatEnd() const {
    std::string out = "\"";
    if (form_.call.details) {
      std::string details;
      JsonWriter writer(details, /*spaces=*/true);
      writer.BeginObject();
      WriteWholeDetails(form_, {answer_, 0, generate_->usage()}, codec(), writer);
      writer.EndObject();
      out += ", \"details\": " + details;
    }
    out += form_.dialect.tgi_compat ? "}]" : "}";
    return out;
  }

  // --- A list of inputs ---

  void QueueTexts(const TextEvent& event) {
    std::deque<std::string>& texts = queued_.at(static_cast<size_t>(event.choice));
    for (const TokenPiece& piece : event.pieces) texts.push_back(piece.text);
  }

  // All that came since the last time.
  void WriteQueued(std::vector<std::string>& messages) {
    const auto has_text = [](const auto& texts) { return !texts.empty(); };
    while (std::ranges::any_of(queued_, has_text)) WriteNext(messages);
  }

  // A token of each input, side by side; where an input has none, "".
  void WriteNext(std::vector<std::string>& messages) {
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    writer.BeginObject().Key("outputs").BeginArray();
    for (std::deque<std::string>& texts : queued_) {
      writer.String(texts.empty() ? std::string_view() : texts.front());
      if (!texts.empty()) texts.pop_front();
    }
    writer.EndArray().EndObject();
    messages.push_back(std::move(out));
  }

  // --- Failures after the beginning ---

  std::string Explain(const Status& error) const {
    return FaultOf(error) == Fault::kTimeout ? "Read chunk timeout." : error.message();
  }

  std::string FormatListError(const std::string& reason) const {
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    writer.BeginObject().Key("code").Int(424).Key("error").String(reason).EndObject();
    return out;
  }

  std::string FormatLastError(const std::string& reason) const {
    std::string out;
    JsonWriter writer(out, /*spaces=*/true);
    writer.BeginObject().Key("token").BeginObject().Key("id").Int(-1).Key("text").String("");
    writer.Key(form_.dialect.tgi_compat ? "logprob" : "log_prob").Int(-1);
    writer.Key(form_.dialect.tgi_compat ? "special" : "special_token").Bool(true);
    if (!form_.dialect.tgi_compat && form_.dialect.generation != Generation::k026) {
      writer.Key("error_msg").String(reason);
    }
    writer.EndObject().Key("generated_text").String(std::string(PrefixOf(form_, 0)) + text_);
    writer.Key("details").BeginObject().Key("finish_reason").String("error");
    if (form_.call.details) {
      writer.Key("generated_tokens").Int(num_tokens_);
      writer.Key("inputs").String(form_.call.inputs.front());
    }
    writer.EndObject().EndObject();
    return out;
  }

  const AnswerForm form_;
  const std::unique_ptr<GenerateCall> generate_;
  bool has_begun_ = false;  // a message was written
  // Of one answer, so far.
  std::string text_;
  int64_t num_tokens_ = 0;
  TextChoice answer_;  // in pieces
  // Of a list.
  std::vector<std::deque<std::string>> queued_;  // [inputs]
  Status failure_;                               // to be told next
};

}  // namespace

std::unique_ptr<MessageSource> MakeStreamSource(AnswerForm form,
                                                std::unique_ptr<GenerateCall> generate) {
  return std::make_unique<StreamSource>(std::move(form), std::move(generate));
}

}  // namespace tandem::serve::lmi
