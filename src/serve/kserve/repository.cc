#include "serve/kserve/repository.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <algorithm>
#include <utility>

#include "serve/kserve/check_request.h"
#include "serve/kserve/running_requests.h"

namespace tandem::serve::kserve {
namespace {

// Counts what a call does, and completes its responses.
class CountedCall final : public InferCall {
 public:
  CountedCall(std::vector<std::shared_ptr<ModelStatistics>> statistics, const Clock& clock,
              std::string model, std::string id, int64_t batch)
      : statistics_(std::move(statistics)),
        clock_(clock),
        model_(std::move(model)),
        id_(std::move(id)),
        batch_(batch),
        started_(clock.Now()) {
    for (const auto& statistics : statistics_) statistics->Begin();
  }
  ~CountedCall() override { End(Cancelled("the client left")); }

  void Start(InferModelPtr model, InferRequest request, SharedMemoryOutputs outputs, Wake wake) {
    outputs_ = std::move(outputs);
    infer_model_ = std::move(model);
    asked_.outputs = request.outputs;
    call_ = infer_model_->Infer(std::move(request), std::move(wake));
  }
  void Refuse(Status error) { error_ = std::move(error); }

  bool is_refused() const override { return !error_.ok() || call_->is_refused(); }
  std::string Summary() const override { return call_ == nullptr ? "" : call_->Summary(); }
  CallNews Next(InferResponse& response, Status& error) override {
    if (ended_) return CallNews::kDone;
    if (!error_.ok()) return Fail(error_, error);
    response = {};
    const CallNews news = call_->Next(response, error);
    if (news == CallNews::kFailed) return Fail(error, error);
    if (news == CallNews::kDone) End({});
    if (news != CallNews::kEvent) return news;
    if (!std::exchange(has_responded_, true)) {
      const Nanos wait = clock_.Now() - started_;
      for (const auto& statistics : statistics_) statistics->FirstResponse(wait);
    }
    std::erase_if(response.outputs,
                  [this](const Tensor& tensor) { return !asked_.Wants(tensor.name); });
    if (Status written = outputs_.Write(response); !written.ok()) {
      return Fail(std::move(written), error);
    }
    if (response.is_final) queued_ = response.queued;
    response.model_name = model_;
    response.model_version = std::string(kModelVersion);
    response.id = id_;
    return news;
  }

 private:
  CallNews Fail(Status why, Status& error) {
    End(why);
    error = std::move(why);
    return CallNews::kFailed;
  }

  void End(const Status& why) {
    if (std::exchange(ended_, true)) return;
    const Nanos total = clock_.Now() - started_;
    for (const auto& statistics : statistics_) {
      if (why.ok()) {
        statistics->Succeed(batch_, total, queued_);
      } else {
        statistics->Fail(ReasonOf(why.code()), total);
      }
    }
  }

  const std::vector<std::shared_ptr<ModelStatistics>> statistics_;  // of the model and its members
  const Clock& clock_;
  const std::string model_;
  const std::string id_;
  const int64_t batch_;
  const Nanos started_;
  InferModelPtr infer_model_;  // outlives its call
  std::unique_ptr<InferCall> call_;
  InferRequest asked_;  // for outputs; without the rest
  SharedMemoryOutputs outputs_;
  Status error_;  // of the check
  Nanos queued_{0};
  bool has_responded_ = false;
  bool ended_ = false;
};

}  // namespace

std::string_view ModelStateName(ModelState state) {
  switch (state) {
    case ModelState::kReady:
      return "READY";
    case ModelState::kUnavailable:
    case ModelState::kFailed:
      return "UNAVAILABLE";
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kUnloading:
      return "UNLOADING";
  }
  return "UNKNOWN";
}

struct Repository::Entry {
  InferModelPtr model;  // null unless kReady
  ModelState state = ModelState::kUnavailable;
  std::string reason;
  Nanos loading_since{0};
  std::optional<Nanos> load_time;
  const std::shared_ptr<RunningRequests> running = std::make_shared<RunningRequests>();
  std::shared_ptr<ModelStatistics> statistics = std::make_shared<ModelStatistics>();
};

Repository::Repository(const Clock& clock) : clock_(clock), control_(64) {}
Repository::~Repository() = default;

void Repository::Add(InferModelPtr model) {
  const std::string name = model->config().name();
  const MutexLock lock(mutex_);
  Entry& entry = entries_[name];
  entry.model.swap(model);  // an old one is released after the lock
  entry.load_time.reset();
  if (entry.state == ModelState::kLoading) entry.load_time = clock_.Now() - entry.loading_since;
  entry.state = ModelState::kReady;
  entry.reason.clear();
}

void Repository::SetState(std::string_view name, ModelState state, std::string reason) {
  InferModelPtr removed;  // released after the lock
  const MutexLock lock(mutex_);
  Entry& entry = entries_[std::string(name)];
  entry.model.swap(removed);
  entry.state = state;
  if (state == ModelState::kLoading) entry.loading_since = clock_.Now();
  entry.reason = std::move(reason);
}

void Repository::Forget(std::string_view name) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found != entries_.end() && found->second.model == nullptr) entries_.erase(found);
}

Result<InferModelPtr> Repository::Find(std::string_view name, std::string_view version) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    return NotFound(fmt::format("Request for unknown model: '{}' is not found", name));
  }
  if (!version.empty() && version != "-1" && version != kModelVersion) {
    return NotFound(
        fmt::format("Request for unknown model: '{}' version {} is not found", name, version));
  }
  if (found->second.model == nullptr) {
    return Unavailable(
        fmt::format("Request for unknown model: '{}' has no available versions", name));
  }
  return found->second.model;
}

bool Repository::Has(std::string_view name) const {
  const MutexLock lock(mutex_);
  return entries_.contains(name);
}

std::vector<ModelEntry> Repository::Index(bool only_ready) const {
  const MutexLock lock(mutex_);
  std::vector<ModelEntry> index;
  for (const auto& [name, entry] : entries_) {
    if (only_ready && entry.state != ModelState::kReady) continue;
    const bool is_known = entry.model != nullptr || entry.state == ModelState::kUnloading;
    ModelEntry& row = index.emplace_back();
    row.name = name;
    if (is_known) row.version = std::string(kModelVersion);
    row.state = entry.state;
    row.reason = entry.reason;
  }
  return index;
}

std::vector<InferModelPtr> Repository::Models() const {
  const MutexLock lock(mutex_);
  std::vector<InferModelPtr> models;
  for (const auto& [name, entry] : entries_) {
    if (entry.model != nullptr) models.push_back(entry.model);
  }
  return models;
}

void Repository::CollectMembers(std::string_view name,
                                std::vector<std::shared_ptr<ModelStatistics>>& statistics) const {
  const MutexLock lock(mutex_);
  const auto add = [&](std::string_view member) TANDEM_REQUIRES(mutex_) {
    const auto found = entries_.find(member);
    if (found != entries_.end()) statistics.push_back(found->second.statistics);
  };
  add(name);
  const auto found = entries_.find(name);
  if (found == entries_.end() || found->second.model == nullptr) return;
  for (const std::string& member : found->second.model->members()) add(member);
}

std::shared_ptr<RunningRequests> Repository::RunningOf(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : found->second.running;
}

std::unique_ptr<InferCall> Repository::Infer(const InferModelPtr& model, InferRequest request,
                                             Wake wake) const {
  std::vector<std::shared_ptr<ModelStatistics>> statistics;
  CollectMembers(model->config().name(), statistics);
  Result<SharedMemoryOutputs> outputs = shared_memory_.Resolve(request);
  const Result<int64_t> batch =
      outputs.ok() ? CheckRequest(model->config(), request) : outputs.status();
  auto call = std::make_unique<CountedCall>(std::move(statistics), clock_, model->config().name(),
                                            request.id, batch.ok() ? *batch : 0);
  if (batch.ok()) {
    request.running = RunningOf(model->config().name());
    call->Start(model, std::move(request), *std::move(outputs), std::move(wake));
  } else {
    call->Refuse(batch.status());
  }
  return call;
}

Result<StatisticsSnapshot> Repository::Statistics(std::string_view name) const {
  std::shared_ptr<ModelStatistics> statistics;
  {
    const MutexLock lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) {
      return NotFound(fmt::format("Request for unknown model: '{}' is not found", name));
    }
    statistics = found->second.statistics;
  }
  return statistics->Snapshot();
}

std::vector<ModelFigures> Repository::Figures() const {
  const MutexLock lock(mutex_);
  std::vector<ModelFigures> figures;
  for (const auto& [name, entry] : entries_) {
    if (entry.model == nullptr) continue;
    figures.push_back({name, entry.model->config().model_transaction_policy().decoupled(),
                       entry.statistics->Snapshot(), entry.load_time});
  }
  return figures;
}

bool Repository::Alive() const {
  const std::vector<InferModelPtr> models = Models();
  return std::all_of(models.begin(), models.end(),
                     [](const InferModelPtr& model) { return model->Ready(); });
}

bool Repository::Ready() const {
  if (leaving_ || !Alive()) return false;
  const MutexLock lock(mutex_);
  return !strict_readiness_ || std::none_of(entries_.begin(), entries_.end(), [](const auto& row) {
    return row.second.state == ModelState::kFailed;
  });
}

Status Repository::Control(const std::function<Status(ModelLoader&)>& change) {
  if (loader_ == nullptr) {
    return InvalidArgument(
        "load / unload operations are not allowed: every model of this server "
        "was named at its start; see --model-control-mode=explicit");
  }
  const MutexLock lock(loading_);
  if (leaving_) return Unavailable("the server is shutting down");
  return change(*loader_);
}

Status Repository::Load(std::string_view name, std::string_view config) {
  return Control([&](ModelLoader& loader) { return loader.Load(name, config); });
}

Status Repository::Unload(std::string_view name, bool dependents) {
  return Control([&](ModelLoader& loader) { return loader.Unload(name, dependents); });
}

}  // namespace tandem::serve::kserve
