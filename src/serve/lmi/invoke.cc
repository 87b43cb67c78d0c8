#include "serve/lmi/invoke.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "serve/generate_call.h"
#include "serve/lmi/answer_form.h"
#include "serve/lmi/body.h"
#include "serve/lmi/errors.h"
#include "serve/lmi/inputs_request.h"
#include "serve/lmi/properties.h"

namespace tandem::serve::lmi {
namespace {

// A call with its place among the jobs. Counts its failure.
class JobSource final : public MessageSource {
 public:
  // `settings`: of the source, which refers to them.
  JobSource(std::shared_ptr<const Settings> settings, std::unique_ptr<MessageSource> source,
            Jobs::Ticket ticket, Counters& counters)
      : settings_(std::move(settings)),
        ticket_(std::move(ticket)),
        source_(std::move(source)),
        counters_(counters) {}

  CallNews Next(HttpHead& head, std::vector<std::string>& messages, Status& error) override {
    const CallNews news = source_->Next(head, messages, error);
    if (news == CallNews::kFailed) counters_.CountFault(FaultOf(error));
    return news;
  }
  HttpHead ErrorHead(const Status& error) const override { return source_->ErrorHead(error); }
  std::string FormatError(const Status& error) const override {
    // The reply's own: the call did not tell it.
    if (error.code() == Code::kDeadlineExceeded) counters_.CountFault(Fault::kTimeout);
    return source_->FormatError(error);
  }
  bool BreaksOnError() const override { return source_->BreaksOnError(); }

 private:
  const std::shared_ptr<const Settings> settings_;
  const Jobs::Ticket ticket_;
  const std::unique_ptr<MessageSource> source_;
  Counters& counters_;
};

ReplyStyle StyleOf(const InputsCall& call) {
  if (call.stream && call.is_list) return {.form = ReplyForm::kLines};
  switch (call.formatter) {
    case OutputFormatter::kJsonLines:
      return {.form = ReplyForm::kLines};
    case OutputFormatter::kSse:
      return {.form = ReplyForm::kEvents, .content_type = "text/event-stream"};
    case OutputFormatter::kNone:
      return {.form = call.stream ? ReplyForm::kPieces : ReplyForm::kWhole,
              .content_type = "text/plain"};
    case OutputFormatter::kJson:
    case OutputFormatter::kByStream:
      break;
  }
  return {.form = call.stream ? ReplyForm::kPieces : ReplyForm::kWhole};
}

Result<Invocation> BeginInputs(const Json& body, const ModelPtr& model, const HttpRequest& request,
                               const Settings& settings, const std::function<void()>& wake) {
  TANDEM_ASSIGN_OR_RETURN(InputsCall call, ParseInputs(body, settings));
  Invocation invocation;
  invocation.style = StyleOf(call);
  invocation.ignored = std::move(call.ignored);
  std::vector<TextRequest> prompts;
  AnswerForm form = FormOf(call, settings, prompts);
  for (TextRequest& prompt : prompts) prompt.cache_key = request.caller;
  const bool is_stream = form.call.stream;
  auto generate = std::make_unique<GenerateCall>(model, std::move(prompts), wake);
  invocation.source = is_stream ? MakeStreamSource(std::move(form), std::move(generate))
                                : MakeWholeSource(std::move(form), std::move(generate));
  return invocation;
}

// Waiting and running ones, of one model.
int64_t MostJobs(const Model& model, const Settings& settings) {
  return settings.job_queue_size + model.service->Stats().max_running;
}

std::unique_ptr<Reply> AnswerWithToken(int status, const std::string& token) {
  HttpHead head;
  head.status = status;
  head.headers = {{std::string(kNextToken), token},
                  {"X-Amzn-SageMaker-Custom-Attributes", fmt::format("{}={}", kNextToken, token)}};
  return MakeReply(std::move(head), {});
}

}  // namespace

Invoker::Invoker(const Host& host, const Settings& settings, openai::AnswerFormatNames formats,
                 Counters& counters, const Clock& clock)
    : host_(host),
      settings_(settings),
      openai_{std::move(formats)},
      counters_(counters),
      results_(AsyncLimits(), clock) {}

std::unique_ptr<Reply> Invoker::Refuse(const Status& error) const {
  counters_.CountFault(FaultOf(error));
  return FaultReply(error, settings_);
}

bool Invoker::IsFetch(const HttpRequest& request) {
  return !PropertyOf(request, kStartingToken).empty();
}

std::unique_ptr<Reply> Invoker::Invoke(const HttpRequest& request, std::string model,
                                       std::string version, const std::function<void()>& wake) {
  if (const std::string token = PropertyOf(request, kStartingToken); !token.empty()) {
    return FetchAsync(request, token);
  }
  if (!request.Header(kAdapterIdentifier).empty()) {
    return Refuse(FieldError("X-Amzn-SageMaker-Adapter-Identifier",
                             "is not supported by this server: it has no adapters"));
  }
  if (model.empty()) model = request.Parameter("model_name").value_or("");
  if (model.empty()) model = PropertyOf(request, "model_name");
  if (version.empty()) version = request.Parameter("model_version").value_or("");
  const Result<ModelPtr> found = ResolveModel(host_, model, version);
  if (!found.ok() && found.status().code() == Code::kInvalidArgument) {
    return ServerErrorReply(settings_.http_codes.bad_request, found.status().message());
  }
  if (!found.ok()) return Refuse(found.status());
  if (PropertyOf(request, kSynchronous) == "false") return BeginAsync(request, *found);
  return Begin(request, *found, wake);
}

std::unique_ptr<Reply> Invoker::Begin(const HttpRequest& request, const ModelPtr& model,
                                      const std::function<void()>& wake) {
  auto settings = std::make_shared<const Settings>(SettingsOf(host_, settings_, model->name));
  Result<Jobs::Ticket> ticket = jobs_->Begin(model->name, MostJobs(*model, *settings));
  if (!ticket.ok()) return Refuse(ticket.status());
  Result<Invocation> invocation = Read(request, model, *settings, wake);
  if (!invocation.ok()) return Refuse(invocation.status());
  ReplyStyle style = std::move(invocation->style);
  style.first_patience = settings->predict_timeout;
  style.next_patience = settings_.chunked_read_timeout;
  std::unique_ptr<Reply> reply =
      MakeCallReply(std::make_unique<JobSource>(std::move(settings), std::move(invocation->source),
                                                *std::move(ticket), counters_),
                    std::move(style));
  if (invocation->ignored.empty()) return reply;
  return AddHeader(std::move(reply), std::string(openai::IgnoredFields::kHeader),
                   ignored_.Tell(invocation->ignored, request.id));
}

Result<Invocation> Invoker::Read(const HttpRequest& request, const ModelPtr& model,
                                 const Settings& settings,
                                 const std::function<void()>& wake) const {
  TANDEM_ASSIGN_OR_RETURN(const Json body,
                          DecodeBody(request.Header("content-type"), request.body));
  const bool is_openai = body.Find("messages") != nullptr ||
                         (body.Find("prompt") != nullptr && body.Find("inputs") == nullptr);
  return is_openai ? BeginOpenAiShape(body, model, request, settings, openai_, wake)
                   : BeginInputs(body, model, request, settings, wake);
}

std::unique_ptr<Reply> Invoker::BeginAsync(const HttpRequest& request, const ModelPtr& model) {
  const Result<std::string> token = results_.Start(
      request.caller,
      [&](const std::function<void()>& wake) { return Begin(request, model, wake); });
  return token.ok() ? AnswerWithToken(200, *token) : Refuse(token.status());
}

std::unique_ptr<Reply> Invoker::FetchAsync(const HttpRequest& request, const std::string& token) {
  const std::string most = PropertyOf(request, kMaxItems);
  size_t count = std::numeric_limits<size_t>::max();
  const auto read = std::from_chars(most.data(), most.data() + most.size(), count);
  if (!most.empty() && (read.ec != std::errc() || count == 0)) {
    return ServerErrorReply(settings_.http_codes.bad_request, "x-max-items: must be above 0");
  }
  Result<AsyncPart> part = results_.Fetch(token, request.caller, count);
  if (!part.ok()) {
    return ServerErrorReply(settings_.http_codes.bad_request, part.status().message());
  }
  if (part->is_pending) return AnswerWithToken(202, part->next_token);
  std::unique_ptr<Reply> reply = MakeReply(std::move(part->head), std::move(part->body));
  if (part->next_token.empty()) return reply;
  return AddHeaders(std::move(reply), {{std::string(kNextToken), part->next_token},
                                       {"X-Amzn-SageMaker-Custom-Attributes",
                                        fmt::format("{}={}", kNextToken, part->next_token)}});
}

}  // namespace tandem::serve::lmi
