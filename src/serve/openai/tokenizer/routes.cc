#include "serve/openai/tokenizer/routes.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "serve/http/call_reply.h"
#include "serve/openai/completions/errors.h"
#include "serve/openai/tokenizer/requests.h"
#include "serve/worker.h"

namespace tandem::serve::openai {
namespace {

constexpr size_t kMaxWaiting = 256;  // texts; further ones are refused

using Compute = std::function<Result<std::string>()>;

// A text that the worker has, or had.
struct Task {
  Compute compute;
  std::function<void()> wake;

  Mutex mutex;
  bool is_cancelled TANDEM_GUARDED_BY(mutex) = false;
  std::optional<Result<std::string>> result TANDEM_GUARDED_BY(mutex);

  void Run() {
    {
      const MutexLock lock(mutex);
      if (is_cancelled) return;
    }
    Result<std::string> computed = compute();
    {
      const MutexLock lock(mutex);
      result = std::move(computed);
    }
    if (wake) wake();
  }
};

class TaskSource final : public MessageSource {
 public:
  explicit TaskSource(std::shared_ptr<Task> task) : task_(std::move(task)) {}
  ~TaskSource() override {
    const MutexLock lock(task_->mutex);
    task_->is_cancelled = true;
  }

  CallNews Next(HttpHead&, std::vector<std::string>& messages, Status& error) override {
    const MutexLock lock(task_->mutex);
    if (!task_->result) return CallNews::kNone;
    if (!task_->result->ok()) {
      error = task_->result->status();
      return CallNews::kFailed;
    }
    messages.push_back(**std::move(task_->result));
    return CallNews::kDone;
  }
  HttpHead ErrorHead(const Status& error) const override { return openai::ErrorHead(error); }
  std::string FormatError(const Status& error) const override { return FormatStatus(error); }

 private:
  const std::shared_ptr<Task> task_;
};

std::unique_ptr<Reply> RunOn(Worker& worker, Compute compute, std::function<void()> wake) {
  auto task = std::make_shared<Task>();
  task->compute = std::move(compute);
  task->wake = std::move(wake);
  if (!worker.TryRun([task] { task->Run(); })) {
    return ErrorReply(
        ResourceExhausted("too many texts wait for the tokenizer, please try again later"));
  }
  return MakeCallReply(std::make_unique<TaskSource>(std::move(task)), ReplyForm::kWhole);
}

Result<ModelPtr> ModelOf(const ModelRegistry& models, const std::string& name) {
  return name.empty() ? models.Default() : models.Find(name);
}

// A route whose answer is `compute` of the parsed body and of the model that it names.
template <typename Parse, typename Answer>
RouteFunction OnWorker(const ModelRegistry& models, std::shared_ptr<Worker> worker, Parse parse,
                       Answer answer) {
  return [&models, worker = std::move(worker), parse, answer](
             const HttpRequest& request, const PathValues&, std::function<void()> wake) {
    auto call = parse(request.body);
    if (!call.ok()) return ErrorReply(call.status());
    Result<ModelPtr> model = ModelOf(models, call->model);
    if (!model.ok()) return ErrorReply(model.status());
    auto compute = [call = *std::move(call), model = *std::move(model), answer] {
      return answer(call, *model->service);
    };
    return RunOn(*worker, std::move(compute), std::move(wake));
  };
}

}  // namespace

std::vector<Route> TokenizerRoutes(const ModelRegistry& models) {
  const auto worker = std::make_shared<Worker>(kMaxWaiting);
  const auto tokenize = [](const TokenizeCall& call, const GenerateService& service) {
    return Tokenize(call, service.codec(), service.request_limits(), service.engine_limits());
  };
  const auto detokenize = [](const DetokenizeCall& call, const GenerateService& service) {
    return Detokenize(call, service.codec());
  };
  const auto describe = [&models](auto&&...) {
    const Result<ModelPtr> model = models.Default();
    if (!model.ok()) return ErrorReply(model.status());
    const GenerateService& service = *(*model)->service;
    return MakeReply(200, DescribeTokenizer(service.codec(), service.engine_limits()));
  };
  return {{"POST", "/tokenize", OnWorker(models, worker, ParseTokenize, tokenize)},
          {"POST", "/detokenize", OnWorker(models, worker, ParseDetokenize, detokenize)},
          {"GET", "/tokenizer_info", describe}};
}

}  // namespace tandem::serve::openai
