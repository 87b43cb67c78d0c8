#include "serve/lmi/describe.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <span>

#include "serve/json.h"

namespace tandem::serve::lmi {
namespace {

std::string_view StatusOf(Health health) {
  return health == Health::kHealthy ? std::string_view("READY") : HealthName(health);
}

std::string FormatPage(std::string_view member, const std::vector<ListedModel>& models,
                       size_t begin, size_t limit,
                       const std::function<void(const ListedModel&, JsonWriter&)>& write) {
  begin = std::min(begin, models.size());
  const size_t end = begin + std::min(limit, models.size() - begin);
  std::string out;
  JsonWriter writer(out, /*spaces=*/true);
  writer.BeginObject();
  if (end < models.size()) writer.Key("nextPageToken").String(std::to_string(end));
  writer.Key(member).BeginArray();
  for (const ListedModel& model : std::span(models).subspan(begin, end - begin)) {
    writer.BeginObject();
    write(model, writer);
    writer.EndObject();
  }
  writer.EndArray().EndObject();
  return out;
}

// One group of one worker: the engine, which batches by itself.
void WriteWorkers(const ListedModel& model, const EngineStats& stats, JsonWriter& writer) {
  const bool is_gpu = stats.memory.gpu > 0;
  writer.Key("workerGroups").BeginArray().BeginObject();
  writer.Key("device").BeginObject().Key("deviceType").String(is_gpu ? "gpu" : "cpu");
  writer.Key("deviceId").Int(is_gpu ? 0 : -1).EndObject();
  writer.Key("minWorkers").Int(1).Key("maxWorkers").Int(1);
  writer.Key("workers").BeginArray().BeginObject().Key("id").Int(1);
  const std::time_t created = model.model->created;
  writer.Key("startTime").String(fmt::format("{:%Y-%m-%dT%H:%M:%S}.000Z", fmt::gmtime(created)));
  writer.Key("status").String(model.health == Health::kHealthy ? "READY" : "UNLOADING");
  writer.EndObject().EndArray().EndObject().EndArray();
}

}  // namespace

std::string FormatModelList(const std::vector<ListedModel>& models, size_t begin, size_t limit) {
  return FormatPage("models", models, begin, limit,
                    [](const ListedModel& model, JsonWriter& writer) {
                      writer.Key("modelName").String(model.name);
                      writer.Key("modelUrl").String(model.origin.url);
                      writer.Key("status").String(StatusOf(model.health));
                    });
}

std::string FormatWorkflowList(const std::vector<ListedModel>& models, size_t begin, size_t limit) {
  return FormatPage("workflows", models, begin, limit,
                    [](const ListedModel& model, JsonWriter& writer) {
                      writer.Key("workflowName").String(model.name).Key("version").Null();
                    });
}

std::string FormatDescription(const ListedModel& model, const Settings& settings) {
  const EngineStats stats = model.model == nullptr ? EngineStats() : model.model->service->Stats();
  std::string out;
  JsonWriter writer(out, /*spaces=*/true);
  writer.BeginArray().BeginObject().Key("workflowName").String(model.name);
  writer.Key("models").BeginArray().BeginObject();
  writer.Key("modelName").String(model.name).Key("modelUrl").String(model.origin.url);
  writer.Key("batchSize").Int(settings.batch_size);
  writer.Key("maxBatchDelayMillis").Int(settings.max_batch_delay_ms);
  writer.Key("maxIdleSeconds").Int(settings.max_idle_s);
  writer.Key("queueSize").Int(settings.job_queue_size);
  writer.Key("requestInQueue").Int(stats.waiting);
  writer.Key("status").String(HealthName(model.health));
  writer.Key("loadedAtStartup").Bool(!model.origin.by_request);
  if (model.model == nullptr) {
    writer.Key("workerGroups").BeginArray().EndArray();
  } else {
    WriteWorkers(model, stats, writer);
  }
  writer.EndObject().EndArray().EndObject().EndArray();
  return out;
}

std::string FormatStatusText(std::string_view text) {
  std::string out;
  JsonWriter(out, /*spaces=*/true).BeginObject().Key("status").String(text).EndObject();
  return out;
}

}  // namespace tandem::serve::lmi
