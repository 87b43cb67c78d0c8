#include "serve/llgtrt/run_source.h"

#include <utility>

#include "serve/json.h"
#include "serve/openai/completions/errors.h"

namespace tandem::serve::llgtrt {

RunSource::RunSource(std::string id, std::string model, int64_t created,
                     std::unique_ptr<GenerateCall> call)
    : id_(std::move(id)), model_(std::move(model)), created_(created), call_(std::move(call)) {}

CallNews RunSource::Next(HttpHead&, std::vector<std::string>& messages, Status& error) {
  TextEvent event;
  const CallNews news = call_->Next(event);
  if (news == CallNews::kFailed) {
    error = std::move(event.error);
  } else if (news == CallNews::kDone) {
    messages.emplace_back("[DONE]");
  } else if (news == CallNews::kEvent) {
    if (!std::exchange(has_begun_, true)) messages.push_back(FormatInitial());
    std::string text;
    for (const TokenPiece& piece : event.pieces) text += piece.text;
    if (!text.empty() || event.finish != TextFinish::kNone) {
      messages.push_back(FormatRun(text, TextFinishName(event.finish), ""));
    }
  }
  return news;
}

HttpHead RunSource::ErrorHead(const Status& error) const { return openai::ErrorHead(error); }

std::string RunSource::FormatError(const Status& error) const {
  return has_begun_ ? FormatRun("", "", error.message()) : openai::FormatStatus(error);
}

std::string RunSource::FormatInitial() const {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("id").String(id_).Key("object").String("initial-run");
  writer.Key("created").Int(created_).Key("model").String(model_).EndObject();
  return out;
}

std::string RunSource::FormatRun(const std::string& text, std::string_view finish,
                                 std::string_view error) const {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("object").String("run").Key("forks").BeginArray().BeginObject();
  writer.Key("index").Int(0);
  if (!finish.empty()) writer.Key("finish_reason").String(finish);
  writer.Key("text").String(text).Key("error").String(error).Key("logs").String("");
  writer.Key("storage").BeginArray().EndArray().Key("micros").Int(0).Key("logprobs").Null();
  writer.EndObject().EndArray();
  // Prompt and output are read by the model; an output token counts twice, as it is drawn too.
  const CallUsage usage = call_->usage();
  const int64_t read = usage.prompt_tokens + usage.completion_tokens;
  writer.Key("usage").BeginObject().Key("sampled_tokens").Int(usage.completion_tokens);
  writer.Key("ff_tokens").Int(read).Key("cost").Int(2 * usage.completion_tokens + read);
  writer.EndObject().EndObject();
  return out;
}

}  // namespace tandem::serve::llgtrt
