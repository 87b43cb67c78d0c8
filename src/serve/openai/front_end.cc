#include "serve/openai/front_end.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/openai/answer_parser.h"
#include "serve/openai/errors.h"
#include "serve/openai/ignored_fields.h"
#include "serve/openai/request.h"
#include "serve/openai/response.h"
#include "serve/openai/tokenizer_routes.h"
#include "serve/unix_time.h"

namespace tandem::serve::openai {
namespace {

// The answer's id is the request's, which the client may have chosen and the log names.
std::string IdOf(Endpoint endpoint, const HttpRequest& request) {
  return fmt::format("{}-{}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl", request.id);
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
        echo_(call.echo),
        include_usage_(call.include_usage),
        continuous_usage_(call.continuous_usage),
        num_generated_(static_cast<size_t>(call.num_generated)),
        num_wanted_(static_cast<size_t>(call.num_choices)),
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
    bool has_prompt = false;
  };

  // A choice may be ahead of its prompt, which comes with the first choice.
  void WriteEvent(TextEvent event, std::vector<std::string>& messages) {
    if (!echo_.prompt) return WriteNews(event, messages);
    early_.push_back(std::move(event));
    for (TextEvent& news : std::exchange(early_, {})) {
      const auto& prompt = call_->answers()[static_cast<size_t>(news.choice)].prompt;
      if (prompt == nullptr) {
        early_.push_back(std::move(news));
        continue;
      }
      WritePrompt(news.choice, *prompt, messages);
      WriteNews(news, messages);
    }
  }

  void WritePrompt(int32_t index, const PromptText& prompt, std::vector<std::string>& messages) {
    Shown& shown = ShownOf(index);
    if (std::exchange(shown.has_prompt, true)) return;
    Choice choice;
    choice.index = index;
    choice.text = prompt.text;
    if (logprobs_) choice.pieces = prompt.pieces;
    shown.num_characters = CountCharacters(choice.text);
    messages.push_back(Chunk(choice, shown));
  }

  void WriteNews(const TextEvent& event, std::vector<std::string>& messages) {
    Shown& shown = ShownOf(event.choice);
    Choice choice;
    choice.index = event.choice;
    choice.text_offset = shown.num_characters;
    if (echo_.answer) {
      for (const TokenPiece& piece : event.pieces) choice.text += piece.text;
      if (logprobs_) choice.pieces = event.pieces;
    }
    shown.num_characters += CountCharacters(choice.text);
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

  Shown& ShownOf(int32_t choice) {
    shown_.resize(call_->answers().size());
    return shown_[static_cast<size_t>(choice)];
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
      choice.pieces = {};
    }
  }

  CallUsage Usage() const {
    CallUsage usage = call_->usage();
    if (!echo_.answer) usage.completion_tokens = 0;
    return usage;
  }

  void WriteEnd(std::vector<std::string>& messages) const {
    const CallUsage usage = Usage();
    const TextCodec& codec = call_->model().service->codec();
    if (!call_->is_streamed()) {
      messages.push_back(FormatResponse(header_,
                                        BestChoices(call_->answers(), num_generated_, num_wanted_),
                                        usage, logprobs_, echo_, codec, format_, tools_));
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
    const CallUsage usage = continuous_usage_ ? Usage() : CallUsage();
    options.usage = continuous_usage_ ? &usage : nullptr;
    options.null_usage = include_usage_;
    return FormatChunk(header_, &choice, options, call_->model().service->codec());
  }

  const ResponseHeader header_;
  const AnswerFormat format_;
  const CallableTools tools_;
  const bool logprobs_;
  const Echo echo_;
  const bool include_usage_;
  const bool continuous_usage_;
  const size_t num_generated_;  // choices of each prompt
  const size_t num_wanted_;     // of them, that the client gets
  const std::unique_ptr<GenerateCall> call_;
  std::vector<Shown> shown_;      // [answers] of a stream
  std::vector<TextEvent> early_;  // of choices whose prompt has not come yet
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

std::unique_ptr<Reply> Generate(const ModelRegistry& models, IgnoredFields& ignored,
                                const AnswerFormatNames& formats, Endpoint endpoint,
                                const HttpRequest& request, const std::function<void()>& wake) {
  Result<Call> call = ParseCall(endpoint, request.body);
  if (!call.ok()) return ErrorReply(call.status());
  for (TextRequest& prompt : call->prompts) prompt.cache_key = request.caller;
  Result<ModelPtr> model = call->model.empty() ? models.Default() : models.Find(call->model);
  if (!model.ok()) return ErrorReply(model.status());
  const ReplyForm form = call->stream ? ReplyForm::kEvents : ReplyForm::kWhole;
  ResponseHeader header{endpoint, IdOf(endpoint, request), (*model)->name, UnixSeconds()};
  const AnswerFormat format = FormatOf(*call, (*model)->service->codec(), formats);
  auto generate = std::make_unique<GenerateCall>(*std::move(model), std::move(call->prompts), wake);
  std::unique_ptr<Reply> reply = MakeCallReply(
      std::make_unique<ResponseSource>(*call, std::move(header), format, std::move(generate)),
      form);
  if (call->ignored.empty()) return reply;
  return AddHeader(std::move(reply), std::string(IgnoredFields::kHeader),
                   ignored.Tell(call->ignored, request.id));
}

std::unique_ptr<Reply> DescribeModel(const ModelRegistry& models, const std::string& name) {
  const Result<ModelPtr> model = models.Find(name);
  return model.ok() ? MakeReply(200, FormatModel(**model)) : ErrorReply(model.status());
}

}  // namespace

FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit, std::string_view version,
                      const AnswerFormatNames& formats) {
  FrontEnd front_end;
  front_end.name = "openai";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int status, std::string_view message) {
    return FormatError(status, message);
  };
  const auto ignored = std::make_shared<IgnoredFields>();
  const auto generate = [&models, ignored, formats](Endpoint endpoint) -> RouteFunction {
    return [&models, ignored, formats, endpoint](const HttpRequest& request, const PathValues&,
                                                 const std::function<void()>& wake) {
      return Generate(models, *ignored, formats, endpoint, request, wake);
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
      // Clients that also embed learn why they cannot here.
      {"POST", "/v1/embeddings",
       [](auto&&...) {
         return MakeReply(404, FormatError(404, "there are no embeddings: these models make text"));
       }},
      {"GET", "/version",
       [text = FormatVersion(version)](auto&&...) { return MakeReply(200, text); }},
  };
  for (Route& route : TokenizerRoutes(models)) front_end.routes.push_back(std::move(route));
  return front_end;
}

}  // namespace tandem::serve::openai
