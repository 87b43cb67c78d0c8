#include "serve/lmi/model_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/reason.h"
#include "serve/json.h"

namespace tandem::serve::lmi {
namespace {

Status NoSuchModel(const std::string& name) {
  return NotFound(fmt::format("Model or workflow not found: {}", Printable(name)))
      .WithReason(Reason::kModelNotFound);
}

}  // namespace

std::string_view HealthName(Health health) {
  switch (health) {
    case Health::kHealthy:
      return "Healthy";
    case Health::kUnhealthy:
      return "Unhealthy";
    case Health::kPending:
      return "PENDING";
    case Health::kFailed:
      break;
  }
  return "FAILED";
}

Settings SettingsOf(const Host& host, const Settings& server, std::string_view model) {
  Settings settings = server;
  if (host.loader == nullptr) return settings;
  const ModelOrigin origin = host.loader->OriginOf(model);
  if (origin.settings) static_cast<ModelSettings&>(settings) = *origin.settings;
  return settings;
}

std::vector<ListedModel> ListModels(const Host& host) {
  std::vector<ListedModel> list;
  const auto origin_of = [&](const std::string& name) {
    return host.loader == nullptr ? ModelOrigin() : host.loader->OriginOf(name);
  };
  for (const ModelPtr& model : host.engines.Engines()) {
    const Health health = model->service->Alive() ? Health::kHealthy : Health::kUnhealthy;
    list.push_back({model->name, origin_of(model->name), health, model});
  }
  for (const kserve::ModelEntry& entry : host.models.Index()) {
    const bool is_pending = entry.state == kserve::ModelState::kLoading;
    if (!is_pending && entry.state != kserve::ModelState::kFailed) continue;
    if (std::ranges::count(list, entry.name, &ListedModel::name) > 0) continue;
    list.push_back({entry.name, origin_of(entry.name),
                    is_pending ? Health::kPending : Health::kFailed, nullptr});
  }
  std::ranges::sort(list, {}, &ListedModel::name);
  return list;
}

Result<ModelPtr> ResolveModel(const Host& host, const std::string& name,
                              const std::string& version) {
  if (name.empty()) {
    if (host.engines.Engines().size() == 1) return host.engines.Default();
    return InvalidArgument("Parameter model_name is required.");
  }
  if (!version.empty() && version != kserve::kModelVersion) return NoSuchModel(name);
  Result<ModelPtr> model = host.engines.Find(name);
  if (model.ok()) return model;
  if (host.models.Find(name).status().code() == Code::kUnavailable) {
    return Unavailable(fmt::format("No worker is available to serve request for model: {}", name));
  }
  return NoSuchModel(name);
}

PingAnswer Ping(const Host& host, const Settings& settings, bool too_many_errors) {
  const std::vector<ListedModel> list = ListModels(host);
  PingAnswer answer;
  JsonWriter writer(answer.body, /*spaces=*/true);
  writer.BeginObject();
  bool is_pending = false;
  bool has_failed = false;
  for (const ListedModel& model : list) {
    writer.Key(model.name).BeginObject().Key("status").String(HealthName(model.health));
    writer.EndObject();
    is_pending = is_pending || model.health == Health::kPending;
    has_failed =
        has_failed || model.health == Health::kFailed || model.health == Health::kUnhealthy;
  }
  writer.EndObject();
  if (has_failed && !settings.keep_healthy) {
    answer.status = 500;
  } else if (too_many_errors || host.models.is_leaving()) {
    answer.status = 503;
  } else if (is_pending && settings.needs_all_ready) {
    answer.status = 503;
  } else if (is_pending && settings.allow_multi_status) {
    answer.status = 207;
  }
  return answer;
}

}  // namespace tandem::serve::lmi
