#include "serve/llgtrt/routes.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "serve/generate_call.h"
#include "serve/http/call_reply.h"
#include "serve/llgtrt/run_request.h"
#include "serve/llgtrt/run_source.h"
#include "serve/openai/completions/errors.h"
#include "serve/openai/request/ignored_fields.h"
#include "serve/unix_time.h"

namespace tandem::serve::llgtrt {
namespace {

constexpr std::string_view kComplete = "Check complete";

std::unique_ptr<Reply> Run(const ModelRegistry& engines, openai::IgnoredFields& ignored,
                           const HttpRequest& request, const std::function<void()>& wake) {
  Result<RunCall> call = ParseRun(request.body);
  if (!call.ok()) return openai::ErrorReply(call.status());
  Result<ModelPtr> model = call->model.empty() ? engines.Default() : engines.Find(call->model);
  if (!model.ok()) return openai::ErrorReply(model.status());
  call->text.cache_key = request.caller;
  std::string name = (*model)->name;
  std::vector<TextRequest> prompts;
  prompts.push_back(std::move(call->text));
  auto generate = std::make_unique<GenerateCall>(*std::move(model), std::move(prompts), wake);
  std::unique_ptr<Reply> reply =
      MakeCallReply(std::make_unique<RunSource>(fmt::format("run-{}", request.id), std::move(name),
                                                UnixSeconds(), std::move(generate)),
                    ReplyForm::kEvents);
  if (call->ignored.empty()) return reply;
  return AddHeader(std::move(reply), std::string(openai::IgnoredFields::kHeader),
                   ignored.Tell(call->ignored, request.id));
}

std::unique_ptr<Reply> PlainText(int status, std::string_view text) {
  HttpHead head;
  head.status = status;
  head.content_type = "text/plain; charset=utf-8";
  return MakeReply(std::move(head), std::string(text));
}

// The answer to a check that has a model write two tokens.
class ModelCheck final : public Reply {
 public:
  explicit ModelCheck(std::unique_ptr<GenerateCall> call) : call_(std::move(call)) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    TextEvent event;
    CallNews news = CallNews::kEvent;
    while (news == CallNews::kEvent) news = call_->Next(event);
    if (news == CallNews::kNone) return Progress::kPending;
    const bool failed = news == CallNews::kFailed;
    return (failed ? openai::ErrorReply(event.error) : PlainText(200, kComplete))->Poll(head, out);
  }

 private:
  const std::unique_ptr<GenerateCall> call_;
};

std::unique_ptr<Reply> CheckModel(const ModelRegistry& engines, const HttpRequest& request,
                                  const std::function<void()>& wake) {
  Result<ModelPtr> model = engines.Default();
  if (!model.ok()) return openai::ErrorReply(model.status());
  TextRequest text;
  text.text = "Hi";
  text.max_tokens = 2;
  text.ignore_eos = true;
  text.priority = 1.0;  // before all others
  text.cache_key = request.caller;
  std::vector<TextRequest> prompts;
  prompts.push_back(std::move(text));
  return std::make_unique<ModelCheck>(
      std::make_unique<GenerateCall>(*std::move(model), std::move(prompts), wake));
}

}  // namespace

std::vector<Route> Routes(const ModelRegistry& engines, const kserve::Repository& models) {
  const auto ignored = std::make_shared<openai::IgnoredFields>();
  const RouteFunction run = [&engines, ignored](const HttpRequest& request, const PathValues&,
                                                const std::function<void()>& wake) {
    return Run(engines, *ignored, request, wake);
  };
  const RouteFunction live = [&models](auto&&...) {
    return models.Alive() ? PlainText(200, kComplete) : PlainText(500, "Check failed");
  };
  const RouteFunction ready = [&models](auto&&...) {
    return PlainText(models.Ready() ? 200 : 503, "");
  };
  const RouteFunction check = [&engines](const HttpRequest& request, const PathValues&,
                                         const std::function<void()>& wake) {
    return CheckModel(engines, request, wake);
  };
  return {{"POST", "/v1/run", run},
          {"POST", "/guidance", run},
          {"GET", "/v1/health/live", live, true},
          {"GET", "/v1/health/ready", ready, true},
          {"GET", "/v1/health/model", check}};
}

}  // namespace tandem::serve::llgtrt
