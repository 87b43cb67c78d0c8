#include "serve/lmi/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/generate_call.h"
#include "serve/lmi/errors.h"
#include "serve/lmi/inputs_request.h"
#include "serve/openai/completions/answer_plan.h"
#include "serve/openai/completions/completion_source.h"
#include "serve/openai/completions/errors.h"
#include "serve/openai/completions/response.h"
#include "serve/openai/request/request.h"
#include "serve/unix_time.h"

namespace tandem::serve::lmi {
namespace {

constexpr std::string_view kFormatterField = "output_formatter";

// OpenAI's messages with djl-serving's errors and end.
class ShapedSource final : public MessageSource {
 public:
  ShapedSource(std::unique_ptr<MessageSource> source, bool is_lines, const Settings& settings)
      : source_(std::move(source)), is_lines_(is_lines), settings_(settings) {}

  CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) override {
    const CallNews news = source_->Next(head, messages, error);
    if (news == CallNews::kDone && is_lines_) {
      // Lines have no mark at their end; the asynchronous handler writes an empty one.
      messages.pop_back();
      if (settings_.generation == Generation::k034) messages.emplace_back();
    }
    has_begun_ = has_begun_ || !messages.empty();
    return news;
  }
  HttpHead ErrorHead(const Status& error) const override {
    return lmi::ErrorHead(error, settings_);
  }
  std::string FormatError(const Status& error) const override {
    const bool is_openai = has_begun_ && settings_.generation == Generation::k034;
    return is_openai ? openai::FormatStatus(error) : FormatFault(error, settings_);
  }

 private:
  const std::unique_ptr<MessageSource> source_;
  const bool is_lines_;
  const Settings& settings_;
  bool has_begun_ = false;
};

OutputFormatter FormatterOfBody(const Json& body, const openai::Call& call,
                                const Settings& settings) {
  const Json* member = body.Find(kFormatterField);
  const std::string* name = member == nullptr ? nullptr : member->AsString();
  OutputFormatter formatter = name == nullptr ? settings.output_formatter : FormatterOf(*name);
  if (formatter == OutputFormatter::kJson || formatter == OutputFormatter::kNone) {
    formatter = OutputFormatter::kByStream;  // a chat that streams has chunks
  }
  return ResolveFormatter(formatter, call.stream, settings.tgi_compat);
}

// The rolling batch has one default for all shapes.
void FillMaxTokens(openai::Call& call, const Settings& settings) {
  if (settings.generation == Generation::k034) return;
  for (TextRequest& prompt : call.prompts) {
    if (call.endpoint == openai::Endpoint::kChat) {
      prompt.default_max_tokens = DefaultNewTokens(settings);
    }
  }
}

}  // namespace

Result<Invocation> BeginOpenAiShape(const Json& body, ModelPtr model, const HttpRequest& request,
                                    const Settings& settings, const OpenAiParts& parts,
                                    const std::function<void()>& wake) {
  const auto endpoint =
      body.Find("messages") == nullptr ? openai::Endpoint::kCompletions : openai::Endpoint::kChat;
  TANDEM_ASSIGN_OR_RETURN(openai::Call call, openai::ParseCall(endpoint, body.Dump()));
  FillMaxTokens(call, settings);
  Invocation invocation;
  invocation.ignored = std::move(call.ignored);
  std::erase(invocation.ignored, kFormatterField);
  // A formatter of lines or events makes a stream of any answer that can be one.
  const OutputFormatter formatter = FormatterOfBody(body, call, settings);
  const bool can_stream = call.num_generated == call.num_choices && !call.echo.expanded &&
                          call.echo.num_prompt_logprobs < 0;
  call.stream = call.stream || (can_stream && formatter != OutputFormatter::kJson);
  for (TextRequest& prompt : call.prompts) {
    prompt.cache_key = request.caller;
    prompt.stream = call.stream;
  }
  TANDEM_ASSIGN_OR_RETURN(
      openai::AnswerPlan plan,
      openai::PlanAnswer(parts.formats, model->service->codec(), parts.call_ids, call));
  openai::ResponseHeader header;
  header.endpoint = endpoint;
  header.id =
      fmt::format("{}-{}", endpoint == openai::Endpoint::kChat ? "chatcmpl" : "cmpl", request.id);
  header.model = model->name;
  header.created = UnixSeconds();
  if (settings.generation != Generation::k034) header.words = openai::EndWords::kDjl;
  std::vector<TextRequest> prompts = std::move(call.prompts);
  auto generate = std::make_unique<GenerateCall>(std::move(model), std::move(prompts), wake);
  const bool is_lines = call.stream && formatter == OutputFormatter::kJsonLines;
  invocation.source = std::make_unique<ShapedSource>(
      openai::MakeCompletionSource(call, std::move(header), std::move(plan), std::move(generate)),
      is_lines, settings);
  if (is_lines) {
    invocation.style.form = ReplyForm::kLines;
  } else if (call.stream) {
    invocation.style = {.form = ReplyForm::kEvents, .content_type = "text/event-stream"};
  }
  return invocation;
}

}  // namespace tandem::serve::lmi
