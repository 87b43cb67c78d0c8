#include "serve/kserve/front_end.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/reason.h"
#include "serve/http/call_reply.h"
#include "serve/json.h"
#include "serve/kserve/request.h"
#include "serve/kserve/response.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kVersion = "1";  // of every model

std::string FormatError(std::string_view message) {
  std::string out;
  JsonWriter(out).BeginObject().Key("error").String(message).EndObject();
  return out;
}

// A full queue is 503 here, with words that clients of both protocols search for.
int StatusOf(const Status& error) {
  return error.code() == Code::kResourceExhausted ? 503 : HttpStatusOf(error.code());
}

std::string MessageOf(const Status& error) {
  const std::string_view prefix =
      error.reason() == Reason::kQueueFull ? "Exceeds maximum queue size. " : "";
  return std::string(prefix) + error.message();
}

HttpHead ErrorHead(const Status& error) {
  HttpHead head;
  head.status = StatusOf(error);
  if (head.status == 503) head.headers.emplace_back("Retry-After", "1");
  return head;
}

std::unique_ptr<Reply> ErrorReply(const Status& error) {
  return MakeReply(ErrorHead(error), FormatError(MessageOf(error)));
}

// One element is written bare, several as an array.
template <typename T, typename Write>
void WriteElements(const std::vector<T>& elements, Write&& write, JsonWriter& writer) {
  if (elements.size() == 1) return write(elements[0]);
  writer.BeginArray();
  for (const T& element : elements) write(element);
  writer.EndArray();
}

// Keys in alphabetical order.
std::string FormatResponse(const Model& model, const std::string& id, const Response& response) {
  const bool is_ensemble = model.role == ModelRole::kEnsemble;
  std::string out;
  JsonWriter writer(out);
  const auto write_float = [&writer](float value) { writer.Float(value); };
  writer.BeginObject().Key("cum_log_probs");
  WriteElements(response.cum_log_probs, write_float, writer);
  if (!id.empty()) writer.Key("id").String(id);
  writer.Key("model_name").String(model.name).Key("model_version").String(kVersion);
  writer.Key("output_log_probs");
  WriteElements(response.output_log_probs, write_float, writer);
  if (is_ensemble) writer.Key("sequence_end").Bool(false).Key("sequence_id").Int(0);
  if (response.sequence_index >= 0) writer.Key("sequence_index").Int(response.sequence_index);
  if (is_ensemble) writer.Key("sequence_start").Bool(false);
  writer.Key("text_output");
  WriteElements(
      response.texts, [&writer](const std::string& text) { writer.String(text); }, writer);
  writer.EndObject();
  return out;
}

class JsonCallWriter final : public CallWriter {
 public:
  JsonCallWriter(std::string id, ResponseBuilder builder)
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
  std::string FormatError(const Status& error) const override {
    return kserve::FormatError(MessageOf(error));
  }

 private:
  const std::string id_;
  ResponseBuilder builder_;
  std::vector<Response> responses_;  // of the current event
};

void WriteTensors(std::span<const TensorInfo> tensors, ModelRole role, JsonWriter& writer) {
  writer.BeginArray();
  for (const TensorInfo& info : tensors) {
    if (info.bls_only && role != ModelRole::kBls) continue;
    writer.BeginObject().Key("name").String(info.name);
    writer.Key("datatype").String(DataTypeName(info.type)).Key("shape").BeginArray();
    writer.Int(-1).Int(info.is_list ? -1 : 1).EndArray().EndObject();
  }
  writer.EndArray();
}

// Name and version of the server that defines this protocol: clients use them to decide which
// features they may use.
std::unique_ptr<Reply> DescribeServer() {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String("triton").Key("version").String("2.56.0");
  writer.Key("extensions")
      .BeginArray()
      .String("parameters")
      .String("generate")
      .EndArray()
      .EndObject();
  return MakeReply(200, out);
}

std::unique_ptr<Reply> DescribeModel(const Model& model) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String(model.name);
  writer.Key("versions").BeginArray().String(kVersion).EndArray();
  writer.Key("platform").String(model.role == ModelRole::kEnsemble ? "ensemble" : "python");
  writer.Key("inputs");
  WriteTensors(Inputs(), model.role, writer);
  writer.Key("outputs");
  WriteTensors(Outputs(), model.role, writer);
  writer.EndObject();
  return MakeReply(200, out);
}

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
  if (values.size() > 1 && values[1] != kVersion) {
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
                       std::make_unique<JsonCallWriter>(call->id, std::move(builder)),
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
    return model.ok() ? DescribeModel(**model) : ErrorReply(model.status());
  };
  front_end.routes = {
      {"GET", "/v2/health/live", live, true},
      {"GET", "/v2/health/ready", ready, true},
      {"GET", "/v2", [](auto&&...) { return DescribeServer(); }},
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
