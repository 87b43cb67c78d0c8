#include "serve/server/kv_events.h"

#include <string>
#include <utility>

#include "runtime/cache/kv_cache.h"
#include "serve/json.h"

namespace tandem::serve {
namespace {

// Levels of the cache.
constexpr int64_t kDevice = 0;
constexpr int64_t kHost = 1;

void WriteDifference(JsonWriter& json, int64_t old_value, int64_t new_value) {
  json.BeginObject().Key("type").String("event_diff");
  json.Key("new_value").Int(new_value).Key("old_value").Int(old_value).EndObject();
}

void WriteStored(const KvEvent& event, JsonWriter& json) {
  json.Key("parent_hash");
  event.parent == 0 ? json.Null() : json.Uint(event.parent);
  json.Key("blocks").BeginArray().BeginObject();
  json.Key("type").String("stored_block").Key("block_hash").Uint(event.hash);
  json.Key("tokens").BeginArray();
  for (const int32_t token : event.tokens) {
    json.BeginObject().Key("type").String("unique_token").Key("token_id").Int(token);
    json.Key("token_extra_id").Int(0).EndObject();
  }
  json.EndArray();
  if (event.key != 0) json.Key("cache_key_hash").Uint(event.key);
  json.Key("cache_level").Int(kDevice).Key("priority").Int(kBlockPriority);
  json.EndObject().EndArray();
}

void WriteData(const KvEvent& event, JsonWriter& json) {
  switch (event.kind) {
    case KvEvent::Kind::kCreated:
      json.Key("type").String("created").Key("num_blocks_per_cache_level").BeginArray();
      json.Int(event.device_blocks).Int(event.host_blocks).EndArray();
      return;
    case KvEvent::Kind::kStored:
      json.Key("type").String("stored");
      WriteStored(event, json);
      return;
    case KvEvent::Kind::kRemoved:
      json.Key("type").String("removed");
      json.Key("block_hashes").BeginArray().Uint(event.hash).EndArray();
      return;
    case KvEvent::Kind::kUpdated:
      json.Key("type").String("updated").Key("block_hash").Uint(event.hash);
      json.Key("cache_level");
      WriteDifference(json, event.to_host ? kDevice : kHost, event.to_host ? kHost : kDevice);
      json.Key("priority");
      WriteDifference(json, kBlockPriority, kBlockPriority);
      return;
  }
}

std::string FormatError(int status, std::string_view message) {
  std::string text;
  JsonWriter json(text);
  json.BeginObject().Key("error").BeginObject().Key("message").String(message);
  json.Key("code").Int(status).EndObject().EndObject();
  return text;
}

std::unique_ptr<Reply> Answer(const Result<ModelPtr>& model) {
  const auto fail = [](const Status& error) {
    const int status = HttpStatusOf(error.code());
    return MakeReply(status, FormatError(status, error.message()));
  };
  if (!model.ok()) return fail(model.status());
  const Result<KvEventBatch> batch = (*model)->service->TakeKvEvents(kMostKvEvents);
  if (!batch.ok()) return fail(batch.status());
  std::string text;
  JsonWriter json(text);
  json.BeginArray();
  for (const KvEvent& event : batch->events) {
    json.BeginObject().Key("event_id").Uint(event.id).Key("data").BeginObject();
    WriteData(event, json);
    json.EndObject();
    if (event.replica >= 0) json.Key("attention_dp_rank").Int(event.replica);
    json.EndObject();
  }
  json.EndArray();
  HttpHead head;
  head.headers.emplace_back("x-kv-events-lost", std::to_string(batch->lost));
  return MakeReply(std::move(head), std::move(text));
}

}  // namespace

FrontEnd MakeKvEventsFrontEnd(const ModelRegistry& models) {
  FrontEnd front_end;
  front_end.name = "kv_events";
  front_end.path_prefix = "/kv_cache_events";
  front_end.format_error = FormatError;
  for (const char* const method : {"POST", "GET"}) {
    front_end.routes.push_back(
        {method, "/kv_cache_events", [&models](auto&&...) { return Answer(models.Default()); }});
    front_end.routes.push_back({method, "/kv_cache_events/{}",
                                [&models](const HttpRequest&, const PathValues& values,
                                          const auto&) { return Answer(models.Find(values[0])); }});
  }
  return front_end;
}

}  // namespace tandem::serve
