#include "serve/kserve/front_end.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/http/call_reply.h"
#include "serve/kserve/errors.h"
#include "serve/kserve/request.h"
#include "serve/kserve/response.h"

namespace tandem::serve::kserve {
namespace {

// The responses of one call.
class ResponseWriter final : public CallWriter {
 public:
  ResponseWriter(std::string id, ResponseBuilder builder)
      : id_(std::move(id)), builder_(std::move(builder)) {}

  void WriteEvent(const GenerateCall& call, TextEvent event,
                  std::vector<std::string>& messages) override {
    responses_.clear();
    builder_.AddEvent(call, std::move(event), responses_);
    for (const Response& response : responses_) {
      messages.push_back(FormatResponse(call.model(), id_, response));
    }
  }

  // A streamed call has already reported everything.
  void WriteEnd(const GenerateCall& call, HttpHead& head,
                std::vector<std::string>& messages) override {
    if (call.is_streamed()) return;
    head.headers.emplace_back("X-Tandem-Seed", std::to_string(call.usage().seed));
    messages.push_back(FormatResponse(call.model(), id_, builder_.Whole(call)));
  }

  HttpHead ErrorHead(const Status& error) const override { return kserve::ErrorHead(error); }
  std::string FormatError(const Status& error) const override { return FormatStatus(error); }

 private:
  const std::string id_;
  ResponseBuilder builder_;
  std::vector<Response> responses_;  // of the current event
};

std::unique_ptr<Reply> Health(bool is_good, std::string_view otherwise) {
  HttpHead head;
  head.status = is_good ? 200 : 400;
  if (is_good) head.content_type.clear();
  return MakeReply(std::move(head), is_good ? "" : FormatError(otherwise));
}

// The model named by a path: /v2/models/NAME, optionally with /versions/VERSION.
Result<ModelPtr> FindModel(const ModelRegistry& models, const PathValues& values) {
  const std::string& name = values[0];
  Result<ModelPtr> model = models.Find(name);
  if (!model.ok())
    return NotFound(fmt::format("Request for unknown model: '{}' is not found", name));
  if (values.size() > 1 && values[1] != kModelVersion) {
    return NotFound(
        fmt::format("Request for unknown model: '{}' version {} is not found", name, values[1]));
  }
  return model;
}

std::unique_ptr<Reply> Generate(const ModelRegistry& models, const PathValues& values,
                                const HttpRequest& request, bool is_stream,
                                const std::function<void()>& wake) {
  Result<ModelPtr> model = FindModel(models, values);
  if (!model.ok()) return ErrorReply(model.status());
  Result<Call> call = ParseGenerate(**model, request.body);
  if (!call.ok()) return ErrorReply(call.status());
  call->text.stream = is_stream && call->stream_tokens;
  call->text.cache_key = request.caller;
  ResponseBuilder builder(call->return_log_probs,
                          call->echo_prompt ? *call->text.text : std::string());
  std::vector<TextRequest> prompts;
  prompts.push_back(std::move(call->text));
  return MakeCallReply(std::make_unique<GenerateCall>(*std::move(model), std::move(prompts), wake),
                       std::make_unique<ResponseWriter>(call->id, std::move(builder)),
                       is_stream ? ReplyForm::kEvents : ReplyForm::kWhole);
}

}  // namespace

FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit) {
  FrontEnd front_end;
  front_end.name = "kserve";
  front_end.path_prefix = "/v2";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int, std::string_view message) { return FormatError(message); };

  const auto generate = [&models](bool is_stream) -> RouteFunction {
    return [&models, is_stream](const HttpRequest& request, const PathValues& values,
                                const std::function<void()>& wake) {
      return Generate(models, values, request, is_stream, wake);
    };
  };
  const RouteFunction live = [&models](auto&&...) {
    return Health(models.Alive(), "Server is not live");
  };
  const RouteFunction ready = [&models](auto&&...) {
    return Health(models.Ready(), "Server is not ready");
  };
  const RouteFunction model_ready = [&models](const HttpRequest&, const PathValues& values,
                                              const auto&) {
    const Result<ModelPtr> model = FindModel(models, values);
    return Health(model.ok() && models.Ready(**model), "Model version not ready");
  };
  const RouteFunction describe = [&models](const HttpRequest&, const PathValues& values,
                                           const auto&) {
    const Result<ModelPtr> model = FindModel(models, values);
    return model.ok() ? MakeReply(200, FormatModel(**model)) : ErrorReply(model.status());
  };
  front_end.routes = {
      {"GET", "/v2/health/live", live, true},
      {"GET", "/v2/health/ready", ready, true},
      {"GET", "/v2", [](auto&&...) { return MakeReply(200, FormatServer()); }},
      {"GET", "/v2/models/{}", describe},
      {"GET", "/v2/models/{}/versions/{}", describe},
      {"GET", "/v2/models/{}/ready", model_ready},
      {"GET", "/v2/models/{}/versions/{}/ready", model_ready},
      {"POST", "/v2/models/{}/generate", generate(false)},
      {"POST", "/v2/models/{}/versions/{}/generate", generate(false)},
      {"POST", "/v2/models/{}/generate_stream", generate(true)},
      {"POST", "/v2/models/{}/versions/{}/generate_stream", generate(true)},
  };
  return front_end;
}

}  // namespace tandem::serve::kserve
