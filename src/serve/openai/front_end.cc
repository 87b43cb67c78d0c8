#include "serve/openai/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/openai/answer_parser.h"
#include "serve/openai/errors.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"
#include "serve/unix_time.h"

namespace tandem::serve::openai {
namespace {

std::string NewId(Endpoint endpoint) {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{}-{:016x}{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl",
                     random(), random());
}

// One call, and its response or its chunks.
class ResponseSource final : public MessageSource {
 public:
  ResponseSource(const Call& call, ResponseHeader header, const AnswerFormat& format,
                 std::unique_ptr<GenerateCall> generate)
      : header_(std::move(header)),
        format_(format),
        tools_(call.tools.tools),
        logprobs_(call.logprobs),
        include_usage_(call.include_usage),
        continuous_usage_(call.continuous_usage),
        call_(std::move(generate)) {}

  CallNews Next(HttpHead&, std::vector<std::string>& messages, Status& error) override {
    TextEvent event;
    const CallNews news = call_->Next(event);
    if (news == CallNews::kFailed) {
      error = std::move(event.error);
    } else if (news == CallNews::kDone) {
      WriteEnd(messages);
    } else if (news == CallNews::kEvent && call_->is_streamed()) {
      WriteEvent(std::move(event), messages);
    }
    return news;
  }

  HttpHead ErrorHead(const Status& error) const override { return openai::ErrorHead(error); }
  std::string FormatError(const Status& error) const override { return FormatStatus(error); }

 private:
  // Of one answer of a stream.
  struct Shown {
    std::optional<AnswerParser> parser = {};
    size_t num_characters = 0;
    bool has_role = false;
  };

  void WriteEvent(TextEvent event, std::vector<std::string>& messages) {
    shown_.resize(call_->answers().size());
    Shown& shown = shown_[static_cast<size_t>(event.choice)];
    Choice choice;
    choice.index = event.choice;
    choice.text_offset = shown.num_characters;
    for (const TokenPiece& piece : event.pieces) choice.text += piece.text;
    shown.num_characters += CountCharacters(choice.text);
    if (logprobs_) choice.pieces = std::move(event.pieces);
    const bool is_last = event.finish != TextFinish::kNone;
    if (header_.endpoint == Endpoint::kChat) {
      WriteParts(std::move(choice), is_last, shown, messages);
    } else if (!choice.text.empty() || !choice.pieces.empty()) {
      messages.push_back(Chunk(choice, shown));
    }
    if (!is_last) return;
    Choice last;
    last.index = event.choice;
    last.finish = event.finish;
    last.has_calls = shown.parser && shown.parser->num_calls() > 0;
    messages.push_back(Chunk(last, shown));
  }

  // A chunk for each piece of a part; log-probabilities come with the first.
  void WriteParts(Choice choice, bool is_last, Shown& shown, std::vector<std::string>& messages) {
    if (!shown.parser) shown.parser.emplace(format_, tools_);
    std::vector<AnswerPart> parts = shown.parser->Push(choice.text);
    if (is_last) std::ranges::move(shown.parser->Flush(), std::back_inserter(parts));
    if (parts.empty() && !choice.pieces.empty()) parts.emplace_back();
    for (AnswerPart& part : parts) {
      choice.part = std::move(part);
      messages.push_back(Chunk(choice, shown));
      choice.pieces.clear();
    }
  }

  void WriteEnd(std::vector<std::string>& messages) const {
    const CallUsage usage = call_->usage();
    const TextCodec& codec = call_->model().service->codec();
    if (!call_->is_streamed()) {
      messages.push_back(
          FormatResponse(header_, call_->answers(), usage, logprobs_, codec, format_, tools_));
      return;
    }
    if (include_usage_) {
      ChunkOptions options;
      options.usage = &usage;
      messages.push_back(FormatChunk(header_, nullptr, options, codec));
    }
    messages.emplace_back("[DONE]");
  }

  std::string Chunk(const Choice& choice, Shown& shown) const {
    ChunkOptions options;
    options.is_first = !std::exchange(shown.has_role, true);
    options.logprobs = logprobs_;
    const CallUsage usage = continuous_usage_ ? call_->usage() : CallUsage();
    options.usage = continuous_usage_ ? &usage : nullptr;
    options.null_usage = include_usage_;
    return FormatChunk(header_, &choice, options, call_->model().service->codec());
  }

  const ResponseHeader header_;
  const AnswerFormat format_;
  const CallableTools tools_;
  const bool logprobs_;
  const bool include_usage_;
  const bool continuous_usage_;
  const std::unique_ptr<GenerateCall> call_;
  std::vector<Shown> shown_;  // [answers] of a stream
};

// The format of the answers to a call, whose marks must be in their text.
AnswerFormat FormatOf(Call& call, const TextCodec& codec, const AnswerFormatNames& names) {
  if (call.endpoint != Endpoint::kChat) return {};
  AnswerFormat format = FindAnswerFormat(names.tools, names.reasoning, codec.ChatSource());
  if (call.tools.tools.names.empty()) format.tools = nullptr;
  std::vector<std::string_view> marks;
  if (format.tools != nullptr) marks.insert(marks.end(), {format.tools->begin, format.tools->end});
  if (format.reasoning != nullptr) {
    marks.insert(marks.end(), {format.reasoning->begin, format.reasoning->end});
  }
  const bool any_special = std::ranges::any_of(
      marks, [&](std::string_view mark) { return codec.SpecialToken(mark).has_value(); });
  for (TextRequest& prompt : call.prompts) {
    if (any_special) prompt.skip_special_tokens = false;
    if (!prompt.chat.add_generation_prompt) format.starts_in_reasoning = false;
  }
  return format;
}

std::unique_ptr<Reply> Generate(const ModelRegistry& models, const AnswerFormatNames& formats,
                                Endpoint endpoint, const HttpRequest& request,
                                const std::function<void()>& wake) {
  Result<Call> call = ParseCall(endpoint, request.body);
  if (!call.ok()) return ErrorReply(call.status());
  for (TextRequest& prompt : call->prompts) prompt.cache_key = request.caller;
  Result<ModelPtr> model = call->model.empty() ? models.Default() : models.Find(call->model);
  if (!model.ok()) return ErrorReply(model.status());
  const ReplyForm form = call->stream ? ReplyForm::kEvents : ReplyForm::kWhole;
  ResponseHeader header{endpoint, NewId(endpoint), (*model)->name, UnixSeconds()};
  const AnswerFormat format = FormatOf(*call, (*model)->service->codec(), formats);
  auto generate = std::make_unique<GenerateCall>(*std::move(model), std::move(call->prompts), wake);
  return MakeCallReply(
      std::make_unique<ResponseSource>(*call, std::move(header), format, std::move(generate)),
      form);
}

std::unique_ptr<Reply> DescribeModel(const ModelRegistry& models, const std::string& name) {
  const Result<ModelPtr> model = models.Find(name);
  return model.ok() ? MakeReply(200, FormatModel(**model)) : ErrorReply(model.status());
}

}  // namespace

FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit,
                      const AnswerFormatNames& formats) {
  FrontEnd front_end;
  front_end.name = "openai";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int status, std::string_view message) {
    return FormatError(status, message);
  };
  const auto generate = [&models, formats](Endpoint endpoint) -> RouteFunction {
    return [&models, formats, endpoint](const HttpRequest& request, const PathValues&,
                                        const std::function<void()>& wake) {
      return Generate(models, formats, endpoint, request, wake);
    };
  };
  front_end.routes = {
      {"POST", "/v1/chat/completions", generate(Endpoint::kChat)},
      {"POST", "/v1/completions", generate(Endpoint::kCompletions)},
      {"GET", "/v1/models",
       [&models](auto&&...) { return MakeReply(200, FormatModels(models.Engines())); }},
      {"GET", "/v1/models/{*}",  // a name may hold a slash
       [&models](const HttpRequest&, const PathValues& values, const auto&) {
         return DescribeModel(models, values[0]);
       }},
  };
  return front_end;
}

}  // namespace tandem::serve::openai
