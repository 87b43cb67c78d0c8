#include "serve/model_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/reason.h"
#include "serve/unix_time.h"

namespace tandem::serve {
namespace {

Status UnknownModel(std::string sentence) {
  return NotFound(std::move(sentence)).WithField("model").WithReason(Reason::kModelNotFound);
}

auto WithName(const std::vector<ModelPtr>& models, std::string_view name) {
  return std::find_if(models.begin(), models.end(),
                      [name](const ModelPtr& model) { return model->name == name; });
}

}  // namespace

Status ModelRegistry::Add(std::string name, std::shared_ptr<GenerateService> service,
                          const std::vector<std::string>& aliases) {
  const int64_t now = UnixSeconds();
  std::vector<Model> added = {{name, false, service, now}};
  for (const std::string& alias : aliases) {
    if (alias != name) added.push_back({alias, true, service, now});
  }
  const MutexLock lock(mutex_);
  for (const Model& model : added) {
    if (WithName(models_, model.name) == models_.end()) continue;
    return InvalidArgument(fmt::format("there is a model named \"{}\" already", model.name));
  }
  for (Model& model : added) models_.push_back(std::make_shared<const Model>(std::move(model)));
  return {};
}

Status ModelRegistry::AddAlias(std::string_view engine, std::string alias) {
  const MutexLock lock(mutex_);
  const auto found = WithName(models_, engine);
  if (found == models_.end()) {
    return UnknownModel(fmt::format("model: \"{}\" does not exist", engine));
  }
  if (WithName(models_, alias) != models_.end()) {
    return InvalidArgument(fmt::format("there is a model named \"{}\" already", alias));
  }
  Model added = **found;
  added.name = std::move(alias);
  added.is_alias = true;
  // An engine's names stand together.
  auto end = found;
  while (end != models_.end() && (*end)->service == added.service) ++end;
  models_.insert(end, std::make_shared<const Model>(std::move(added)));
  return {};
}

void ModelRegistry::RemoveAlias(std::string_view alias) {
  ModelPtr removed;  // released after the lock
  const MutexLock lock(mutex_);
  const auto found = WithName(models_, alias);
  if (found == models_.end() || !(*found)->is_alias) return;
  removed = *found;
  models_.erase(found);
}

Status ModelRegistry::Remove(std::string_view name) {
  std::vector<ModelPtr> removed;  // released after the lock, because a service takes time to end
  const MutexLock lock(mutex_);
  const auto found = WithName(models_, name);
  if (found == models_.end()) {
    return UnknownModel(fmt::format("model: \"{}\" does not exist", name));
  }
  const auto* const service = (*found)->service.get();
  std::erase_if(removed_, [](const auto& ended) { return ended.expired(); });
  removed_.push_back((*found)->service);
  const auto kept = std::stable_partition(
      models_.begin(), models_.end(),
      [service](const ModelPtr& model) { return model->service.get() != service; });
  std::move(kept, models_.end(), std::back_inserter(removed));
  models_.erase(kept, models_.end());
  return {};
}

void ModelRegistry::TakeAnyName() {
  const MutexLock lock(mutex_);
  takes_any_name_ = true;
}

Result<ModelPtr> ModelRegistry::Find(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto found = WithName(models_, name);
  if (found != models_.end()) return *found;
  if (takes_any_name_ && !models_.empty()) return models_.front();
  std::string known;
  for (const ModelPtr& model : models_) {
    if (model->is_alias) continue;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", model->name);
  }
  return UnknownModel(fmt::format("model: \"{}\" does not exist; this server has {}", name,
                                  known.empty() ? "none" : known));
}

Result<ModelPtr> ModelRegistry::Default() const {
  const MutexLock lock(mutex_);
  if (models_.empty()) return UnknownModel("model: no model is loaded");
  return models_.front();
}

std::vector<ModelPtr> ModelRegistry::List() const {
  const MutexLock lock(mutex_);
  return models_;
}

std::vector<ModelPtr> ModelRegistry::Engines() const {
  std::vector<ModelPtr> engines = List();
  std::erase_if(engines, [](const ModelPtr& model) { return model->is_alias; });
  return engines;
}

std::vector<EngineStats> ModelRegistry::Stats() const {
  std::vector<EngineStats> stats;
  for (const ModelPtr& model : Engines()) stats.push_back(model->service->Stats());
  return stats;
}

void ModelRegistry::Close() const {
  std::vector<std::shared_ptr<GenerateService>> services;
  {
    const MutexLock lock(mutex_);
    for (const ModelPtr& model : models_) {
      if (!model->is_alias) services.push_back(model->service);
    }
    for (const auto& removed : removed_) {
      if (auto service = removed.lock()) services.push_back(std::move(service));
    }
  }
  for (const std::shared_ptr<GenerateService>& service : services) service->Close();
}

}  // namespace tandem::serve
