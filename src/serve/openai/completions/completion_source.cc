#include "serve/openai/completions/completion_source.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "serve/openai/answers/answer_parser.h"
#include "serve/openai/completions/errors.h"

namespace tandem::serve::openai {
namespace {

// One call, and its response or its chunks.
class CompletionSource final : public MessageSource {
 public:
  CompletionSource(const Call& call, ResponseHeader header, AnswerPlan plan,
                   std::unique_ptr<GenerateCall> generate)
      : header_(std::move(header)),
        plan_(std::move(plan)),
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
  std::string Summary() const override { return call_->Summary(); }
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
      WriteParts(std::move(choice), event.reasoning, is_last, shown, messages);
    } else if (!choice.text.empty() || !choice.pieces.empty()) {
      messages.push_back(Chunk(choice, shown));
    }
    if (!is_last) return;
    Choice last;
    last.index = event.choice;
    last.finish = event.finish;
    last.ends_with_calls = shown.parser && EndsWithCalls(plan_.tools, shown.parser->num_calls());
    messages.push_back(Chunk(last, shown));
  }

  Shown& ShownOf(int32_t choice) {
    shown_.resize(call_->answers().size());
    return shown_[static_cast<size_t>(choice)];
  }

  // A chunk for each piece of a part; log-probabilities come with the first.
  void WriteParts(Choice choice, ReasoningStart start, bool is_last, Shown& shown,
                  std::vector<std::string>& messages) {
    if (!shown.parser) shown.parser.emplace(plan_.NewParser(start));
    std::vector<AnswerPart> parts = shown.parser->Push(choice.text);
    if (is_last) std::ranges::move(shown.parser->Flush(), std::back_inserter(parts));
    if (parts.empty() && !choice.pieces.empty()) parts.emplace_back();
    for (AnswerPart& part : parts) {
      if (part.kind == PartKind::kCall) part.id = plan_.NewCallId();
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
                                        usage, logprobs_, echo_, codec, plan_));
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
  const AnswerPlan plan_;
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

}  // namespace

std::unique_ptr<MessageSource> MakeCompletionSource(const Call& call, ResponseHeader header,
                                                    AnswerPlan plan,
                                                    std::unique_ptr<GenerateCall> generate) {
  return std::make_unique<CompletionSource>(call, std::move(header), std::move(plan),
                                            std::move(generate));
}

}  // namespace tandem::serve::openai
