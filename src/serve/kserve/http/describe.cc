#include "serve/kserve/http/describe.h"

#include <google/protobuf/util/json_util.h>
#include <model_config.pb.h>

#include "base/check.h"
#include "serve/json.h"
#include "serve/kserve/model_metadata.h"
#include "serve/kserve/server_metadata.h"

namespace tandem::serve::kserve {
namespace {

void WriteTensors(std::span<const TensorMetadata> tensors, JsonWriter& writer) {
  writer.BeginArray();
  for (const TensorMetadata& tensor : tensors) {
    writer.BeginObject().Key("name").String(tensor.name);
    writer.Key("datatype").String(DataTypeName(tensor.type));
    writer.Key("shape").BeginArray();
    for (const int64_t dim : tensor.shape) writer.Int(dim);
    writer.EndArray().EndObject();
  }
  writer.EndArray();
}

void WriteTime(std::string_view name, const CountedTime& time, JsonWriter& writer) {
  writer.Key(name).BeginObject().Key("count").Uint(time.count);
  writer.Key("ns").Int(time.time.count()).EndObject();
}

// Integers of 64 bits, which protobuf writes as strings, become numbers again.
void WriteWithNumbers(const Json& value, JsonWriter& writer) {
  if (const Json::Object* object = value.AsObject()) {
    writer.BeginObject();
    for (const JsonMember& member : *object) {
      writer.Key(member.name);
      const bool is_dims = member.name == "dims" || member.name == "shape";
      if (is_dims && member.value.AsArray() != nullptr) {
        writer.BeginArray();
        for (const Json& dim : *member.value.AsArray()) {
          writer.Int(dim.AsString() == nullptr ? *dim.AsInt() : std::stoll(*dim.AsString()));
        }
        writer.EndArray();
      } else {
        WriteWithNumbers(member.value, writer);
      }
    }
    writer.EndObject();
  } else if (const Json::Array* array = value.AsArray()) {
    writer.BeginArray();
    for (const Json& element : *array) WriteWithNumbers(element, writer);
    writer.EndArray();
  } else {
    writer.Value(value);
  }
}

}  // namespace

std::string FormatServer(bool has_shared_memory) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("name").String(kServerName).Key("version").String(kServerVersion);
  writer.Key("extensions").BeginArray();
  for (const std::string_view extension : ServerExtensions(has_shared_memory)) {
    writer.String(extension);
  }
  writer.EndArray().EndObject();
  return out;
}

std::string FormatMetadata(const inference::ModelConfig& config) {
  std::string out;
  JsonWriter writer(out);
  const ModelMetadata metadata = MetadataOf(config);
  writer.BeginObject().Key("name").String(metadata.name);
  writer.Key("versions").BeginArray().String(kModelVersion).EndArray();
  writer.Key("platform").String(metadata.platform);
  writer.Key("inputs");
  WriteTensors(metadata.inputs, writer);
  writer.Key("outputs");
  WriteTensors(metadata.outputs, writer);
  writer.EndObject();
  return out;
}

std::string FormatConfig(const inference::ModelConfig& config) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(config, &text, options);
  TANDEM_CHECK(status.ok(), "a model's configuration has no JSON form");
  const Result<Json> json = ParseJson(text);
  TANDEM_CHECK(json.ok(), "a model's configuration has a broken JSON form");
  std::string out;
  JsonWriter writer(out);
  WriteWithNumbers(*json, writer);
  return out;
}

std::string FormatIndex(std::span<const ModelEntry> entries) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginArray();
  for (const ModelEntry& entry : entries) {
    writer.BeginObject().Key("name").String(entry.name);
    if (!entry.version.empty()) writer.Key("version").String(entry.version);
    writer.Key("state").String(ModelStateName(entry.state));
    if (!entry.reason.empty()) writer.Key("reason").String(entry.reason);
    writer.EndObject();
  }
  writer.EndArray();
  return out;
}

std::string FormatStatistics(std::span<const NamedStatistics> models) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject().Key("model_stats").BeginArray();
  for (const auto& [model, figures] : models) {
    writer.BeginObject().Key("name").String(model).Key("version").String(kModelVersion);
    writer.Key("last_inference").Uint(figures.last_inference);
    writer.Key("inference_count").Uint(figures.inference_count);
    writer.Key("execution_count").Uint(figures.execution_count);
    writer.Key("inference_stats").BeginObject();
    WriteTime("success", figures.success, writer);
    WriteTime("fail", figures.failure, writer);
    WriteTime("queue", figures.queue, writer);
    WriteTime("compute_input", {}, writer);
    WriteTime("compute_infer", figures.compute, writer);
    WriteTime("compute_output", {}, writer);
    WriteTime("cache_hit", {}, writer);
    WriteTime("cache_miss", {}, writer);
    writer.EndObject();
    writer.Key("response_stats").BeginObject().EndObject();
    writer.Key("batch_stats").BeginArray().EndArray();
    writer.Key("memory_usage").BeginArray().EndArray().EndObject();
  }
  writer.EndArray().EndObject();
  return out;
}

std::string FormatTraceSettings(const TraceSettings& settings) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  for (const auto& [name, values] : settings) {
    writer.Key(name).BeginArray();
    for (const std::string& value : values) writer.String(value);
    writer.EndArray();
  }
  writer.EndObject();
  return out;
}

std::string FormatRegions(std::span<const SharedMemoryInfo> regions) {
  std::string out;
  JsonWriter writer(out);
  writer.BeginArray();
  for (const SharedMemoryInfo& region : regions) {
    writer.BeginObject().Key("name").String(region.name).Key("key").String(region.key);
    writer.Key("offset").Uint(region.offset).Key("byte_size").Uint(region.byte_size).EndObject();
  }
  writer.EndArray();
  return out;
}

}  // namespace tandem::serve::kserve
