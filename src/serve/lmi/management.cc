#include "serve/lmi/management.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/log_level.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "base/reason.h"
#include "serve/http/wire.h"
#include "serve/json.h"
#include "serve/lmi/describe.h"
#include "serve/lmi/errors.h"

namespace tandem::serve::lmi {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr size_t kUsualPage = 100;

// The answer of work on another thread.
struct Outcome {
  Mutex mutex;
  std::optional<std::pair<int, std::string>> answer TANDEM_GUARDED_BY(mutex);
};

class OutcomeReply final : public Reply {
 public:
  explicit OutcomeReply(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    const MutexLock lock(outcome_->mutex);
    if (!outcome_->answer) return Progress::kPending;
    head.status = outcome_->answer->first;
    out = outcome_->answer->second;
    return Progress::kLast;
  }

 private:
  const std::shared_ptr<Outcome> outcome_;
};

int StatusOf(const Status& error) {
  if (error.reason() == Reason::kAlreadyExists) return 409;
  switch (error.code()) {
    case Code::kNotFound:
      return 404;
    case Code::kResourceExhausted:
      return 507;
    case Code::kUnavailable:
      return 503;
    case Code::kInternal:
    case Code::kDataLoss:
      return 500;
    default:
      return 400;
  }
}

// Runs `work` on the repository's thread. The reply waits for it; it goes on without the
// reply too. Null where too many wait.
std::unique_ptr<Reply> RunControl(const Host& host, std::function<Status()> work,
                                  const std::string& done, const std::function<void()>& wake) {
  auto outcome = std::make_shared<Outcome>();
  const bool is_queued = host.models.RunControl([outcome, work = std::move(work), done, wake] {
    const Status status = work();
    {
      const MutexLock lock(outcome->mutex);
      outcome->answer =
          status.ok()
              ? std::pair(200, FormatStatusText(done))
              : std::pair(StatusOf(status), FormatServerError(StatusOf(status), status.message()));
    }
    wake();
  });
  return is_queued ? std::make_unique<OutcomeReply>(std::move(outcome)) : nullptr;
}

std::unique_ptr<Reply> TooManyWait() {
  return ServerErrorReply(503, "too many models wait to be loaded or unloaded");
}

std::optional<std::string> RefusalOfControl(const Host& host, const Settings& settings) {
  if (host.models.is_leaving()) return "the server is shutting down";
  if (host.loader != nullptr && settings.multi_model) return std::nullopt;
  return "models are loaded and unloaded at the start and the end of this server; start it with "
         "SAGEMAKER_MULTI_MODEL=true to do it by request";
}

// "/opt/ml/models/abc/model.tar.gz" → "model".
std::string NameOfUrl(std::string_view url) {
  while (url.ends_with('/')) url.remove_suffix(1);
  url.remove_prefix(url.find_last_of("/:") + 1);
  for (const std::string_view end : {".tar.gz", ".tgz", ".zip", ".tar"}) {
    if (url.ends_with(end)) return std::string(url.substr(0, url.size() - end.size()));
  }
  return std::string(url);
}

bool IsGoodName(std::string_view name) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= kMaxNameBytes && !name.starts_with('.') &&
         name.find_first_not_of(kLetters) == name.npos;
}

// The parameters of a request: those of the query, and the members of a JSON body, as SageMaker
// sends them.
Result<std::vector<std::pair<std::string, std::string>>> ReadArguments(const HttpRequest& request) {
  auto arguments = ParseQuery(request.query);
  if (request.body.find_first_not_of(" \t\r\n") == std::string::npos) return arguments;
  TANDEM_ASSIGN_OR_RETURN(const Json body, ParseJson(request.body));
  if (body.AsObject() == nullptr) return InvalidArgument("the body must be a JSON object");
  for (const JsonMember& member : *body.AsObject()) {
    const std::string* text = member.value.AsString();
    arguments.emplace_back(member.name, text == nullptr ? member.value.Dump() : *text);
  }
  return arguments;
}

std::unique_ptr<Reply> RegisterModel(const Host& host, const Settings& settings,
                                     const HttpRequest& request,
                                     const std::function<void()>& wake) {
  const auto arguments = ReadArguments(request);
  if (!arguments.ok()) return ServerErrorReply(400, arguments.status().message());
  LoadRequest load;
  bool waits = true;
  std::string ignored;
  for (const auto& [name, value] : *arguments) {
    if (name == "url") {
      load.url = value;
    } else if (name == "model_name") {
      load.name = value;
    } else if (name == "synchronous") {
      waits = LowerCase(value) != "false";
    } else if (ignored.size() < kMaxNameBytes) {
      ignored += (ignored.empty() ? "" : ", ") + Printable(name.substr(0, kMaxNameBytes));
    }
  }
  if (load.url.empty()) return ServerErrorReply(400, "Parameter url is required.");
  if (load.name.empty()) load.name = NameOfUrl(load.url);
  if (!IsGoodName(load.name)) {
    return ServerErrorReply(
        400, fmt::format("model_name: letters, digits and ._- make a name, at most {} of them, and "
                         "no dot at its beginning",
                         kMaxNameBytes));
  }
  if (const auto refusal = RefusalOfControl(host, settings)) {
    return ServerErrorReply(400, *refusal);
  }
  if (host.engines.Find(load.name).ok() || host.models.Has(load.name)) {
    return ServerErrorReply(409, fmt::format("Model \"{}\" is already registered.", load.name));
  }
  const std::string name = load.name;
  std::unique_ptr<Reply> reply = RunControl(
      host,
      [loader = host.loader, load = std::move(load)] {
        const Status status = loader->Load(load);
        if (!status.ok()) LogError("model {}: {}", load.name, status.message());
        return status;
      },
      fmt::format("Model \"{}\" registered.", name), wake);
  if (reply == nullptr) return TooManyWait();
  if (!waits) {
    reply =
        MakeReply(202, FormatStatusText(fmt::format("Model \"{}\" registration scheduled.", name)));
  }
  if (ignored.empty()) return reply;
  return AddHeader(std::move(reply), "X-Tandem-Ignored", std::move(ignored));
}

std::optional<ListedModel> FindListed(const Host& host, const std::string& name) {
  for (ListedModel& model : ListModels(host)) {
    if (model.name == name) return std::move(model);
  }
  return std::nullopt;
}

std::unique_ptr<Reply> NotFoundReply(const std::string& name) {
  return ServerErrorReply(404, fmt::format("Model or workflow not found: {}", Printable(name)));
}

std::unique_ptr<Reply> UnregisterModel(const Host& host, const Settings& settings,
                                       const std::string& name, const std::function<void()>& wake) {
  if (!FindListed(host, name)) return NotFoundReply(name);
  if (const auto refusal = RefusalOfControl(host, settings)) {
    return ServerErrorReply(400, *refusal);
  }
  std::unique_ptr<Reply> reply = RunControl(
      host, [loader = host.loader, name] { return loader->Unload(name); },
      fmt::format("Model or workflow \"{}\" unregistered", name), wake);
  return reply == nullptr ? TooManyWait() : std::move(reply);
}

// A number of the query; nullopt where it is no number from 0.
std::optional<size_t> NumberOf(const HttpRequest& request, std::string_view name, size_t usual) {
  const std::optional<std::string> text = request.Parameter(name);
  if (!text || text->empty()) return usual;
  size_t value = 0;
  const char* const end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

// One worker serves a model: it batches by itself.
std::unique_ptr<Reply> ScaleModel(const Host& host, const HttpRequest& request,
                                  const std::string& name) {
  if (!FindListed(host, name)) return NotFoundReply(name);
  for (const std::string_view field : {"min_worker", "max_worker"}) {
    const auto wanted = NumberOf(request, field, 1);
    if (wanted == size_t{1}) continue;
    return ServerErrorReply(
        400, fmt::format("{}: must be 1: one worker serves each model, in batches of its own; see "
                         "option.max_rolling_batch_size",
                         field));
  }
  const bool waits = LowerCase(request.Parameter("synchronous").value_or("true")) != "false";
  return MakeReply(waits ? 200 : 202,
                   FormatStatusText(fmt::format("Workflow \"{}\" worker updated", name)));
}

using FormatPage = std::string (*)(const std::vector<ListedModel>&, size_t, size_t);

RouteFunction ListPage(const Host& host, FormatPage format) {
  return [host, format](const HttpRequest& request, const PathValues&, const auto&) {
    const auto begin = NumberOf(request, "next_page_token", 0);
    const auto limit = NumberOf(request, "limit", kUsualPage);
    if (!begin) return ServerErrorReply(400, "next_page_token: must be one of an earlier answer");
    if (!limit || *limit == 0 || *limit > kUsualPage) {
      return ServerErrorReply(400, fmt::format("limit: must be a number from 1 to {}", kUsualPage));
    }
    return MakeReply(200, format(ListModels(host), *begin, *limit));
  };
}

// The routes of one model, under both prefixes, with and without a version.
void AddModelRoutes(std::string_view prefix, const Host& host, const Settings& settings,
                    std::vector<Route>& routes) {
  const RouteFunction describe = [host, &settings](const HttpRequest&, const PathValues& values,
                                                   const auto&) {
    const std::optional<ListedModel> model = FindListed(host, values[0]);
    if (!model) return NotFoundReply(values[0]);
    return MakeReply(200, FormatDescription(*model, SettingsOf(host, settings, model->name)));
  };
  const RouteFunction scale = [host](const HttpRequest& request, const PathValues& values,
                                     const auto&) { return ScaleModel(host, request, values[0]); };
  const RouteFunction remove = [host, &settings](const HttpRequest&, const PathValues& values,
                                                 const std::function<void()>& wake) {
    return UnregisterModel(host, settings, values[0], wake);
  };
  for (const std::string_view suffix : {"/{}", "/{}/{}"}) {
    const std::string pattern = std::string(prefix) + std::string(suffix);
    routes.push_back({"GET", pattern, describe});
    routes.push_back({"PUT", pattern, scale});
    routes.push_back({"DELETE", pattern, remove});
  }
}

Route Refused(std::string method, std::string pattern, std::string sentence) {
  return {std::move(method), std::move(pattern),
          [sentence = std::move(sentence)](auto&&...) { return ServerErrorReply(400, sentence); }};
}

void AddAdapterRoutes(const std::string& prefix, std::vector<Route>& routes) {
  const std::string sentence =
      "adapters are not supported by this server: merge them into the weights of the model";
  routes.push_back(Refused("GET", prefix, sentence));
  routes.push_back(Refused("POST", prefix, sentence));
  routes.push_back(Refused("GET", prefix + "/{}", sentence));
  routes.push_back(Refused("DELETE", prefix + "/{}", sentence));
  routes.push_back(Refused("POST", prefix + "/{}/update", sentence));
}

}  // namespace

std::vector<Route> ModelRoutes(const Host& host, const Settings& settings) {
  std::vector<Route> routes;
  routes.push_back({"GET", "/models", ListPage(host, FormatModelList)});
  routes.push_back({"POST", "/models",
                    [host, &settings](const HttpRequest& request, const PathValues&,
                                      const std::function<void()>& wake) {
                      return RegisterModel(host, settings, request, wake);
                    }});
  AddAdapterRoutes("/models/{}/adapters", routes);
  AddModelRoutes("/models", host, settings, routes);
  return routes;
}

std::vector<Route> WorkflowRoutes(const Host& host, const Settings& settings) {
  std::vector<Route> routes;
  routes.push_back({"GET", "/workflows", ListPage(host, FormatWorkflowList)});
  routes.push_back(Refused("POST", "/workflows",
                           "workflows of several models are not supported by this server; register "
                           "each model with POST /models"));
  AddModelRoutes("/workflows", host, settings, routes);
  return routes;
}

std::vector<Route> AdapterRoutes() {
  std::vector<Route> routes;
  AddAdapterRoutes("/adapters", routes);
  return routes;
}

Route LoggingRoute() {
  return {"POST", "/server/logging",
          [](const HttpRequest& request, const PathValues&, const auto&) {
            const std::string name = LowerCase(request.Parameter("level").value_or("info"));
            struct Row {
              std::string_view name;
              LogLevel level;
            };
            constexpr Row kLevels[] = {{"trace", LogLevel::kDebug}, {"debug", LogLevel::kDebug},
                                       {"info", LogLevel::kInfo},   {"warn", LogLevel::kWarning},
                                       {"error", LogLevel::kError}, {"fatal", LogLevel::kError},
                                       {"off", LogLevel::kOff}};
            const auto* const found = std::ranges::find(kLevels, name, &Row::name);
            if (found == std::ranges::end(kLevels)) {
              return ServerErrorReply(
                  400, "level: must be one of TRACE, DEBUG, INFO, WARN, ERROR, FATAL, OFF");
            }
            SetLogLevel(found->level);
            return MakeReply(200, FormatStatusText("OK"));
          }};
}

}  // namespace tandem::serve::lmi
