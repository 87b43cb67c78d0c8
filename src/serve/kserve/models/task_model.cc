#include "serve/kserve/models/task_model.h"

#include <model_config.pb.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/mutex.h"
#include "serve/worker.h"

namespace tandem::serve::kserve {
namespace {

constexpr size_t kMaxWaiting = 1024;

// A task that was handed to the worker.
struct Task {
  InferRequest request;
  Wake wake;

  Mutex mutex;
  bool is_cancelled TANDEM_GUARDED_BY(mutex) = false;
  std::optional<Result<InferResponse>> result TANDEM_GUARDED_BY(mutex);

  void Finish(Result<InferResponse> computed) {
    {
      const MutexLock lock(mutex);
      result = std::move(computed);
    }
    wake();
  }
};

class TaskCall final : public InferCall {
 public:
  explicit TaskCall(std::shared_ptr<Task> task) : task_(std::move(task)) {}
  ~TaskCall() override {
    const MutexLock lock(task_->mutex);
    task_->is_cancelled = true;
  }

  CallNews Next(InferResponse& response, Status& error) override {
    if (is_over_) return CallNews::kDone;
    const MutexLock lock(task_->mutex);
    if (!task_->result) return CallNews::kNone;
    is_over_ = true;
    if (!task_->result->ok()) {
      error = task_->result->status();
      return CallNews::kFailed;
    }
    response = **std::move(task_->result);
    response.is_final = true;
    return CallNews::kEvent;
  }

 private:
  const std::shared_ptr<Task> task_;
  bool is_over_ = false;
};

class TaskModel final : public InferModel {
 public:
  TaskModel(const inference::ModelConfig& config, Compute compute)
      : config_(config), compute_(std::move(compute)), worker_(kMaxWaiting) {}

  const inference::ModelConfig& config() const override { return config_; }

  std::unique_ptr<InferCall> Infer(InferRequest request, Wake wake) const override {
    auto task = std::make_shared<Task>();
    task->request = std::move(request);
    task->wake = std::move(wake);
    if (!worker_.TryRun([this, task] { Run(*task); })) {
      task->Finish(ResourceExhausted("too many requests wait for this model, try again later"));
    }
    return std::make_unique<TaskCall>(std::move(task));
  }

 private:
  void Run(Task& task) const {
    {
      const MutexLock lock(task.mutex);
      if (task.is_cancelled) return;
    }
    task.Finish(compute_(task.request));
  }

  const inference::ModelConfig config_;
  const Compute compute_;
  mutable Worker worker_;  // last: its tasks use the members above
};

}  // namespace

InferModelPtr MakeTaskModel(const inference::ModelConfig& config, Compute compute) {
  return std::make_shared<TaskModel>(config, std::move(compute));
}

}  // namespace tandem::serve::kserve
