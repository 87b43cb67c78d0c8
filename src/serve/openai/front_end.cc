#include "serve/openai/front_end.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/openai/completions/answer_plan.h"
#include "serve/openai/completions/completion_source.h"
#include "serve/openai/completions/errors.h"
#include "serve/openai/completions/response.h"
#include "serve/openai/request/ignored_fields.h"
#include "serve/openai/request/request.h"
#include "serve/openai/responses/source.h"
#include "serve/openai/tokenizer/routes.h"
#include "serve/unix_time.h"

namespace tandem::serve::openai {
namespace {

// The answer's id is the request's, which the client may have chosen and the log names.
std::string IdOf(Endpoint endpoint, const HttpRequest& request) {
  return fmt::format("{}-{}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl", request.id);
}

// What every call needs. Copied into the routes' functions.
struct Shared {
  const ModelRegistry& models;
  std::shared_ptr<IgnoredFields> ignored;
  AnswerFormatNames formats;
  std::shared_ptr<CallIds> call_ids;
};

// Begins the call; `make_source(plan, generate)` makes its messages.
template <typename MakeSource>
std::unique_ptr<Reply> Begin(const Shared& shared, Call& call, const HttpRequest& request,
                             const std::function<void()>& wake, const MakeSource& make_source) {
  for (TextRequest& prompt : call.prompts) prompt.cache_key = request.caller;
  Result<ModelPtr> model =
      call.model.empty() ? shared.models.Default() : shared.models.Find(call.model);
  if (!model.ok()) return ErrorReply(model.status());
  Result<AnswerPlan> plan =
      PlanAnswer(shared.formats, (*model)->service->codec(), shared.call_ids, call);
  if (!plan.ok()) return ErrorReply(plan.status());
  const ReplyForm form = call.stream ? ReplyForm::kEvents : ReplyForm::kWhole;
  const std::vector<std::string> ignored = std::move(call.ignored);
  auto generate = std::make_unique<GenerateCall>(*std::move(model), std::move(call.prompts), wake);
  std::unique_ptr<Reply> reply =
      MakeCallReply(make_source(*std::move(plan), std::move(generate)), form);
  if (ignored.empty()) return reply;
  return AddHeader(std::move(reply), std::string(IgnoredFields::kHeader),
                   shared.ignored->Tell(ignored, request.id));
}

std::unique_ptr<Reply> Complete(const Shared& shared, Endpoint endpoint, const HttpRequest& request,
                                const std::function<void()>& wake) {
  Result<Call> call = ParseCall(endpoint, request.body);
  if (!call.ok()) return ErrorReply(call.status());
  return Begin(
      shared, *call, request, wake, [&](AnswerPlan plan, std::unique_ptr<GenerateCall> generate) {
        ResponseHeader header{endpoint, IdOf(endpoint, request), generate->model().name,
                              UnixSeconds()};
        return MakeCompletionSource(*call, std::move(header), std::move(plan), std::move(generate));
      });
}

std::unique_ptr<Reply> Respond(const Shared& shared, const HttpRequest& request,
                               const std::function<void()>& wake) {
  Result<ResponsesCall> call = ParseResponses(request.body);
  if (!call.ok()) return ErrorReply(call.status());
  return Begin(shared, call->call, request, wake,
               [&](AnswerPlan plan, std::unique_ptr<GenerateCall> generate) {
                 return MakeResponsesSource(*std::move(call), request.id, std::move(plan),
                                            std::move(generate));
               });
}

std::unique_ptr<Reply> DescribeModel(const ModelRegistry& models, const std::string& name) {
  const Result<ModelPtr> model = models.Find(name);
  return model.ok() ? MakeReply(200, FormatModel(**model)) : ErrorReply(model.status());
}

}  // namespace

FrontEnd MakeFrontEnd(const ModelRegistry& models, size_t body_limit, std::string_view version,
                      const AnswerFormatNames& formats, std::shared_ptr<CallIds> call_ids) {
  FrontEnd front_end;
  front_end.name = "openai";
  front_end.body_limit = body_limit;
  front_end.format_error = [](int status, std::string_view message) {
    return FormatError(status, message);
  };
  const Shared shared{models, std::make_shared<IgnoredFields>(), formats, std::move(call_ids)};
  const auto complete = [shared](Endpoint endpoint) -> RouteFunction {
    return [shared, endpoint](const HttpRequest& request, const PathValues&,
                              const std::function<void()>& wake) {
      return Complete(shared, endpoint, request, wake);
    };
  };
  front_end.routes = {
      {"POST", "/v1/chat/completions", complete(Endpoint::kChat)},
      {"POST", "/v1/completions", complete(Endpoint::kCompletions)},
      {"POST", "/v1/responses",
       [shared](const HttpRequest& request, const PathValues&, const std::function<void()>& wake) {
         return Respond(shared, request, wake);
       }},
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
