#include "serve/kserve/http/front_end.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "serve/http/call_reply.h"
#include "serve/http/compression.h"
#include "serve/json.h"
#include "serve/kserve/control.h"
#include "serve/kserve/error_text.h"
#include "serve/kserve/http/describe.h"
#include "serve/kserve/http/errors.h"
#include "serve/kserve/http/generate.h"
#include "serve/kserve/http/infer_json.h"
#include "serve/kserve/http/tensor_json.h"
#include "serve/kserve/log_settings.h"
#include "serve/kserve/shared_memory.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kHeaderLength = "inference-header-content-length";

// Errors are the same for every call.
class ProtocolSource : public MessageSource {
 public:
  HttpHead ErrorHead(const Status& error) const final { return kserve::ErrorHead(error); }
  std::string FormatError(const Status& error) const final { return FormatStatus(error); }
};

// The responses of one call of the generate extension.
class GenerateSource final : public ProtocolSource {
 public:
  GenerateSource(std::unique_ptr<InferCall> call, bool is_stream)
      : call_(std::move(call)), is_stream_(is_stream) {}

  CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) override {
    InferResponse response;
    switch (call_->Next(response, error)) {
      case CallNews::kNone:
        return CallNews::kNone;
      case CallNews::kEvent:
        if (response.outputs.empty()) return CallNews::kEvent;  // says only that it is the last
        if (!is_stream_ && !message_.empty()) return TooMany(error);
        seed_ = response.seed;
        (is_stream_ ? messages.emplace_back() : message_) = FormatGenerated(response);
        return CallNews::kEvent;
      case CallNews::kDone:
        if (is_stream_) return CallNews::kDone;
        if (message_.empty()) return TooMany(error);
        if (seed_) head.headers.emplace_back("X-Tandem-Seed", std::to_string(*seed_));
        messages.push_back(std::move(message_));
        return CallNews::kDone;
      case CallNews::kFailed:
        break;
    }
    return CallNews::kFailed;
  }

  // As clients of this protocol expect: what a model answers to a stream is events, errors too.
  bool ErrorIsEvent() const override { return !call_->is_refused(); }
  std::string Summary() const override { return call_->Summary(); }

 private:
  static CallNews TooMany(Status& error) {
    error = Internal(
        "generate expects model to produce exactly 1 response, use generate stream for model that "
        "generates various number of responses");
    return CallNews::kFailed;
  }

  const std::unique_ptr<InferCall> call_;
  const bool is_stream_;
  std::string message_;  // of a whole reply
  std::optional<uint64_t> seed_;
};

// The one response of an inference.
class InferSource final : public ProtocolSource {
 public:
  // `encoding` of the reply: as ChooseEncoding.
  InferSource(InferRequest asked, std::string_view encoding, std::unique_ptr<InferCall> call)
      : asked_(std::move(asked)), encoding_(encoding), call_(std::move(call)) {}

  CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) override {
    InferResponse response;
    switch (call_->Next(response, error)) {
      case CallNews::kNone:
        return CallNews::kNone;
      case CallNews::kEvent: {
        InferBody body = FormatInfer(asked_, response);
        message_ = std::move(body.bytes);
        json_bytes_ = body.json_bytes;
        return CallNews::kEvent;
      }
      case CallNews::kDone:
        if (json_bytes_) {
          head.content_type = "application/octet-stream";
          head.headers.emplace_back("Inference-Header-Content-Length",
                                    std::to_string(*json_bytes_));
        }
        if (!encoding_.empty()) {
          head.headers.emplace_back("Content-Encoding", encoding_);
          message_ = Compress(encoding_, message_);
        }
        messages.push_back(std::move(message_));
        return CallNews::kDone;
      case CallNews::kFailed:
        break;
    }
    return CallNews::kFailed;
  }
  std::string Summary() const override { return call_->Summary(); }

 private:
  const InferRequest asked_;  // without its inputs: how the outputs are written
  const std::string_view encoding_;
  const std::unique_ptr<InferCall> call_;
  std::string message_;
  std::optional<size_t> json_bytes_;
};

// The end of work on the repository's thread.
class ControlSource final : public ProtocolSource {
 public:
  struct Outcome {
    Mutex mutex;
    std::optional<Status> status TANDEM_GUARDED_BY(mutex);
  };
  explicit ControlSource(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  CallNews Next(HttpHead&, std::vector<std::string>&, Status& error) override {
    const MutexLock lock(outcome_->mutex);
    if (!outcome_->status) return CallNews::kNone;
    error = *outcome_->status;
    return error.ok() ? CallNews::kDone : CallNews::kFailed;
  }

 private:
  const std::shared_ptr<Outcome> outcome_;
};

std::unique_ptr<Reply> Health(bool is_good, std::string_view otherwise) {
  HttpHead head;
  head.status = is_good ? 200 : 400;
  if (is_good) head.content_type.clear();
  return MakeReply(std::move(head), is_good ? "" : FormatError(otherwise));
}

// The model named by a path: /v2/models/NAME, optionally with /versions/VERSION. Some routes do
// without.
std::optional<std::string_view> ModelName(const PathValues& values) {
  return values.empty() ? std::nullopt : std::optional<std::string_view>(values[0]);
}
std::string_view ModelVersion(const PathValues& values) {
  return values.size() > 1 ? std::string_view(values[1]) : "";
}
Result<InferModelPtr> FindModel(const Repository& models, const PathValues& values) {
  return models.Find(values[0], ModelVersion(values));
}

std::unique_ptr<Reply> Generate(const Repository& models, const PathValues& values,
                                const HttpRequest& http, bool is_stream, const Wake& wake) {
  const Result<InferModelPtr> model = FindModel(models, values);
  if (!model.ok()) return ErrorReply(model.status());
  Result<InferRequest> request = ParseGenerate((*model)->config(), http.body);
  if (!request.ok()) return ErrorReply(request.status());
  request->caller = http.caller;
  request->one_response = !is_stream;
  return MakeCallReply(
      std::make_unique<GenerateSource>(models.Infer(*model, *std::move(request), wake), is_stream),
      is_stream ? ReplyForm::kEvents : ReplyForm::kWhole);
}

std::unique_ptr<Reply> Infer(const Repository& models, const PathValues& values, HttpRequest http,
                             size_t body_limit, const Wake& wake) {
  const Result<InferModelPtr> model = FindModel(models, values);
  if (!model.ok()) return ErrorReply(model.status());
  if ((*model)->config().model_transaction_policy().decoupled()) {
    return ErrorReply(RefuseDecoupled("HTTP end point", "generate or generate_stream"));
  }
  std::optional<size_t> json_bytes;
  if (const std::string_view length = http.Header(kHeaderLength); !length.empty()) {
    size_t value = 0;
    const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), value);
    if (error != std::errc() || end != length.data() + length.size()) {
      return ErrorReply(
          InvalidArgument(fmt::format("Unable to parse {}, got: {}", kHeaderLength, length)));
    }
    json_bytes = value;
  }
  const Result<std::string> body =
      Decompress(http.Header("content-encoding"), std::move(http.body), body_limit);
  if (!body.ok()) return ErrorReply(body.status());
  Result<InferRequest> request = ParseInfer(*body, json_bytes);
  if (!request.ok()) return ErrorReply(request.status());
  request->model_name = values[0];
  request->caller = http.caller;
  request->one_response = true;
  InferRequest asked;
  asked.parameters = request->parameters;
  asked.outputs = request->outputs;
  return MakeCallReply(std::make_unique<InferSource>(
                           std::move(asked), ChooseEncoding(http.Header("accept-encoding")),
                           models.Infer(*model, *std::move(request), wake)),
                       ReplyForm::kWhole);
}

std::unique_ptr<Reply> Statistics(const Repository& models, const PathValues& values) {
  const auto found = StatisticsOf(models, ModelName(values), ModelVersion(values));
  return found.ok() ? MakeReply(200, FormatStatistics(*found)) : ErrorReply(found.status());
}

// A body that is empty or a JSON object.
Result<Json> ParseObject(std::string_view body) {
  Result<Json> json = ParseJson(body.empty() ? "{}" : body);
  if (!json.ok()) return json.status().Annotate("failed to parse the request JSON buffer");
  if (json->AsObject() == nullptr) return InvalidArgument("the body must be a JSON object");
  return json;
}

std::unique_ptr<Reply> Index(const Repository& models, const HttpRequest& http) {
  const Result<Json> body = ParseObject(http.body);
  if (!body.ok()) return ErrorReply(body.status());
  const Json* ready = body->Find("ready");
  if (ready != nullptr && ready->AsBool() == nullptr) {
    return ErrorReply(InvalidArgument("'ready' must be true or false").WithField("ready"));
  }
  return MakeReply(200, FormatIndex(models.Index(ready != nullptr && *ready->AsBool())));
}

// `control`: LoadModel or UnloadModel.
std::unique_ptr<Reply> Control(decltype(LoadModel)& control, Repository& models,
                               const std::string& name, const HttpRequest& http, const Wake& wake) {
  const Result<Json> body = ParseObject(http.body);
  if (!body.ok()) return ErrorReply(body.status());
  const Result<Parameters> parameters = ParametersOf(*body);
  if (!parameters.ok()) return ErrorReply(parameters.status());
  auto outcome = std::make_shared<ControlSource::Outcome>();
  control(models, name, *parameters, [outcome, wake](const Status& status) {
    {
      const MutexLock lock(outcome->mutex);
      outcome->status = status;
    }
    wake();
  });
  return MakeCallReply(std::make_unique<ControlSource>(std::move(outcome)), ReplyForm::kWhole);
}

std::unique_ptr<Reply> DescribeLog() {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  for (const auto& [name, value] : LogSettings()) {
    writer.Key(name);
    WriteParameter(value, writer);
  }
  writer.EndObject();
  return MakeReply(200, std::move(out));
}

std::unique_ptr<Reply> ChangeLog(const HttpRequest& http) {
  const Result<Json> body = ParseObject(http.body);
  if (!body.ok()) return ErrorReply(body.status());
  const Result<Parameters> settings = ReadParameters(*body);
  if (!settings.ok()) return ErrorReply(settings.status());
  const Status changed = SetLogSettings(*settings);
  return changed.ok() ? DescribeLog() : ErrorReply(changed);
}

// The values of a trace setting: a string, a list of them, or null for the default. Any other value
// is given as its text, which no setting has.
std::vector<std::string> TraceValues(const Json& value) {
  const auto text = [](const Json& one) {
    return one.AsString() != nullptr ? *one.AsString() : one.Dump();
  };
  if (value.is_null()) return {};
  const Json::Array* list = value.AsArray();
  if (list == nullptr || list->empty()) return {text(value)};
  std::vector<std::string> values;
  for (const Json& one : *list) values.push_back(text(one));
  return values;
}

// The trace settings, of the server or of a model, after a change where there is a body.
std::unique_ptr<Reply> TraceSetting(const Repository& models, const PathValues& values,
                                    const HttpRequest& http) {
  const Result<Json> body = ParseObject(http.body);
  if (!body.ok()) return ErrorReply(body.status());
  TraceSettings changes;
  for (const JsonMember& setting : *body->AsObject()) {
    changes.emplace(setting.name, TraceValues(setting.value));
  }
  const Result<TraceSettings> settings =
      ChangeTraceSettings(models, ModelName(values), ModelVersion(values), changes);
  return settings.ok() ? MakeReply(200, FormatTraceSettings(*settings))
                       : ErrorReply(settings.status());
}

// A number of bytes in the description of a region; none if it is not there.
Result<std::optional<uint64_t>> BytesMember(const Json& object, std::string_view name) {
  const Json* value = object.Find(name);
  if (value == nullptr) return std::optional<uint64_t>();
  if (value->AsUint() != nullptr) return std::optional(*value->AsUint());
  if (value->AsInt() != nullptr && *value->AsInt() >= 0) {
    return std::optional(static_cast<uint64_t>(*value->AsInt()));
  }
  return InvalidArgument("attempt to access JSON non-unsigned-integer as unsigned-integer")
      .WithField(name);
}

Result<SharedMemoryInfo> ParseRegion(const std::string& name, std::string_view text) {
  const auto missing = [](std::string_view field) {
    return InvalidArgument(fmt::format("Shared memory register request has no '{}' field", field))
        .WithField(field);
  };
  TANDEM_ASSIGN_OR_RETURN(const Json body, ParseObject(text));
  const Json* key = body.Find("key");
  if (key == nullptr) return missing("key");
  if (key->AsString() == nullptr) {
    return InvalidArgument("attempt to access JSON non-string as string").WithField("key");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto offset, BytesMember(body, "offset"));
  TANDEM_ASSIGN_OR_RETURN(const auto byte_size, BytesMember(body, "byte_size"));
  if (!byte_size) return missing("byte_size");
  return SharedMemoryInfo{name, *key->AsString(), offset.value_or(0), *byte_size};
}

std::unique_ptr<Reply> RegisterRegion(SharedMemoryRegions& regions, const std::string& name,
                                      std::string_view body) {
  const auto add = [&]() -> Status {
    TANDEM_RETURN_IF_ERROR(regions.CheckAllowed());
    TANDEM_ASSIGN_OR_RETURN(SharedMemoryInfo info, ParseRegion(name, body));
    return regions.Register(std::move(info));
  };
  const Status added = add();
  return added.ok() ? MakeReply(200, "") : ErrorReply(added);
}

// The routes of system shared memory, and those of CUDA shared memory, which has no regions.
void AddSharedMemoryRoutes(SharedMemoryRegions& regions, std::vector<Route>& routes) {
  const auto name = [](const PathValues& values) { return values.empty() ? "" : values[0]; };
  const RouteFunction status = [&regions, name](const HttpRequest&, const PathValues& values,
                                                const auto&) {
    const auto found = regions.List(name(values));
    return found.ok() ? MakeReply(200, FormatRegions(*found)) : ErrorReply(found.status());
  };
  const RouteFunction unregister = [&regions, name](const HttpRequest&, const PathValues& values,
                                                    const auto&) {
    regions.Unregister(name(values));
    return MakeReply(200, "");
  };
  const RouteFunction cuda_status = [name](const HttpRequest&, const PathValues& values,
                                           const auto&) {
    const Status listed = ListCudaRegions(name(values));
    return listed.ok() ? MakeReply(200, "[]") : ErrorReply(listed);
  };
  const RouteFunction nothing = [](auto&&...) { return MakeReply(200, ""); };
  for (const std::string_view place : {"", "/region/{}"}) {
    const auto path = [place](std::string_view kind, std::string_view action) {
      return fmt::format("/v2/{}sharedmemory{}/{}", kind, place, action);
    };
    routes.push_back({"GET", path("system", "status"), status});
    routes.push_back({"POST", path("system", "unregister"), unregister});
    routes.push_back({"GET", path("cuda", "status"), cuda_status});
    routes.push_back({"POST", path("cuda", "unregister"), nothing});
  }
  routes.push_back({"POST", "/v2/systemsharedmemory/region/{}/register",
                    [&regions](const HttpRequest& request, const PathValues& values, const auto&) {
                      return RegisterRegion(regions, values[0], request.body);
                    }});
  routes.push_back({"POST", "/v2/cudasharedmemory/region/{}/register",
                    [](auto&&...) { return ErrorReply(NoCudaSharedMemory()); }});
}

}  // namespace

FrontEnd MakeFrontEnd(Repository& models, size_t body_limit) {
  FrontEnd front_end;
  front_end.name = "kserve";
  front_end.path_prefix = "/v2";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int, std::string_view message) { return FormatError(message); };

  const auto generate = [&models](bool is_stream) -> RouteFunction {
    return [&models, is_stream](const HttpRequest& request, const PathValues& values,
                                const Wake& wake) {
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
    const Result<InferModelPtr> model = FindModel(models, values);
    return Health(model.ok() && models.Ready(**model), "Model version not ready");
  };
  const auto describe = [&models](auto format) -> RouteFunction {
    return [&models, format](const HttpRequest&, const PathValues& values, const auto&) {
      const Result<InferModelPtr> model = FindModel(models, values);
      return model.ok() ? MakeReply(200, format((*model)->config())) : ErrorReply(model.status());
    };
  };
  const RouteFunction statistics = [&models](const HttpRequest&, const PathValues& values,
                                             const auto&) { return Statistics(models, values); };
  const RouteFunction infer = [&models, body_limit](HttpRequest request, const PathValues& values,
                                                    const Wake& wake) {
    return Infer(models, values, std::move(request), body_limit, wake);
  };
  const RouteFunction trace = [&models](const HttpRequest& request, const PathValues& values,
                                        const auto&) {
    return TraceSetting(models, values, request);
  };
  const auto control = [&models](decltype(LoadModel)& change) -> RouteFunction {
    return
        [&models, &change](const HttpRequest& request, const PathValues& values, const Wake& wake) {
          return Control(change, models, values[0], request, wake);
        };
  };
  front_end.routes = {
      {"GET", "/v2/health/live", live, true},
      {"GET", "/v2/health/ready", ready, true},
      {"GET", "/v2",
       [&models](auto&&...) {
         return MakeReply(200, FormatServer(models.shared_memory().CheckAllowed().ok()));
       }},
      {"GET", "/v2/models/stats", statistics},
      {"POST", "/v2/repository/index",
       [&models](const HttpRequest& request, const auto&...) { return Index(models, request); }},
      {"GET", "/v2/logging", [](auto&&...) { return DescribeLog(); }},
      {"POST", "/v2/logging",
       [](const HttpRequest& request, const auto&...) { return ChangeLog(request); }},
      {"GET", "/v2/trace/setting", trace},
      {"POST", "/v2/trace/setting", trace},
      {"POST", "/v2/repository/models/{}/load", control(LoadModel)},
      {"POST", "/v2/repository/models/{}/unload", control(UnloadModel)},
  };
  AddSharedMemoryRoutes(models.shared_memory(), front_end.routes);
  // Routes of a model, with and without its version.
  const auto add = [&front_end](const char* method, std::string_view end,
                                const RouteFunction& handle, bool decodes_body = false) {
    for (const std::string_view model : {"/v2/models/{}", "/v2/models/{}/versions/{}"}) {
      front_end.routes.push_back(
          {method, fmt::format("{}{}", model, end), handle, false, decodes_body});
    }
  };
  add("GET", "", describe(FormatMetadata));
  add("GET", "/config", describe(FormatConfig));
  add("GET", "/ready", model_ready);
  add("GET", "/stats", statistics);
  add("GET", "/trace/setting", trace);
  add("POST", "/trace/setting", trace);
  add("POST", "/infer", infer, /*decodes_body=*/true);
  add("POST", "/generate", generate(false));
  add("POST", "/generate_stream", generate(true));
  return front_end;
}

}  // namespace tandem::serve::kserve
