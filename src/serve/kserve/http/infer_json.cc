#include "serve/kserve/http/infer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "serve/json.h"
#include "serve/kserve/http/tensor_json.h"
#include "serve/kserve/request_rules.h"

namespace tandem::serve::kserve {
namespace {

constexpr std::string_view kBinaryData = "binary_data";
constexpr std::string_view kBinaryOutput = "binary_data_output";
constexpr std::string_view kBinarySize = "binary_data_size";

Status Malformed(std::string sentence) { return InvalidArgument(std::move(sentence)); }

// The member of an object, which must be a string.
Result<std::string> StringMember(const Json& object, std::string_view name) {
  const Json* value = object.Find(name);
  if (value != nullptr && value->AsString() != nullptr) return *value->AsString();
  return Malformed(fmt::format("Unable to parse '{}': {}", name,
                               value == nullptr ? "it is missing"
                                                : "attempt to access JSON non-string as string"))
      .WithField(name);
}

Status AppendNested(const Json& value, Tensor& tensor) {
  const Json::Array* list = value.AsArray();
  if (list == nullptr) return AppendElement(value, tensor);
  for (const Json& element : *list) TANDEM_RETURN_IF_ERROR(AppendNested(element, tensor));
  return {};
}

// Where an input lies, if it is in shared memory; then nothing else gives its data.
Result<std::optional<SharedMemoryRange>> InputRange(const std::string& name, const Json& input,
                                                    const Parameters& parameters) {
  TANDEM_ASSIGN_OR_RETURN(std::optional<SharedMemoryRange> range,
                          CheckTensorParameters(name, parameters));
  const bool has_data = input.Find("data") != nullptr;
  const bool has_binary = parameters.contains(kBinarySize);
  if (range && (has_data || has_binary)) {
    return Malformed(fmt::format("Input must set only one of the following fields: 'data', "
                                 "'binary_data_size' in 'parameters', 'shared_memory_region' in "
                                 "'parameters'. But set{}{} 'shared_memory_region'",
                                 has_data ? " 'data'" : "",
                                 has_binary ? " 'binary_data_size'" : ""))
        .WithField(name);
  }
  return range;
}

class InferReader {
 public:
  explicit InferReader(std::string_view binary) : binary_(binary) {}

  Result<InferRequest> Read(const Json& body) {
    if (const Json* id = body.Find("id")) {
      if (id->AsString() == nullptr) {
        return Malformed("Unable to parse 'id': attempt to access JSON non-string as string")
            .WithField("id");
      }
      request_.id = *id->AsString();
    }
    TANDEM_ASSIGN_OR_RETURN(request_.parameters, ParametersOf(body));
    TANDEM_RETURN_IF_ERROR(CheckParameters(request_.parameters));
    const Json* inputs = body.Find("inputs");
    if (inputs == nullptr || inputs->AsArray() == nullptr) {
      return Malformed("Unable to parse 'inputs': it must be an array").WithField("inputs");
    }
    for (const Json& input : *inputs->AsArray()) TANDEM_RETURN_IF_ERROR(ReadInput(input));
    if (const Json* outputs = body.Find("outputs")) TANDEM_RETURN_IF_ERROR(ReadOutputs(*outputs));
    if (!binary_.empty()) {
      return Malformed(
          fmt::format("unexpected additional input data: {} bytes after the last "
                      "binary tensor",
                      binary_.size()));
    }
    return std::move(request_);
  }

 private:
  Status ReadInput(const Json& json) {
    Tensor tensor;
    TANDEM_ASSIGN_OR_RETURN(tensor.name, StringMember(json, "name"));
    TANDEM_ASSIGN_OR_RETURN(const std::string type, StringMember(json, "datatype"));
    const std::optional<DataType> known = DataTypeNamed(type);
    if (!known) {
      return Malformed(fmt::format("input '{}': unknown datatype '{}'", tensor.name, type))
          .WithField(tensor.name);
    }
    tensor.type = *known;
    const Json* shape = json.Find("shape");
    if (shape == nullptr || shape->AsArray() == nullptr) {
      return Malformed(fmt::format("input '{}': 'shape' must be an array", tensor.name))
          .WithField(tensor.name);
    }
    for (const Json& dim : *shape->AsArray()) {
      if (dim.AsInt() == nullptr || *dim.AsInt() < 0) {
        return Malformed(fmt::format("input '{}': a dimension of its shape is not an integer of at "
                                     "least 0",
                                     tensor.name))
            .WithField(tensor.name);
      }
      tensor.shape.push_back(*dim.AsInt());
    }
    TANDEM_ASSIGN_OR_RETURN(const Parameters parameters, ParametersOf(json));
    TANDEM_ASSIGN_OR_RETURN(std::optional<SharedMemoryRange> range,
                            InputRange(tensor.name, json, parameters));
    const auto size = parameters.find(kBinarySize);
    if (range) {
      request_.shared_inputs.push_back({request_.inputs.size(), *std::move(range)});
    } else {
      TANDEM_RETURN_IF_ERROR(size != parameters.end() ? TakeBinary(size->second, tensor)
                                                      : ReadData(json.Find("data"), tensor));
    }
    request_.inputs.push_back(std::move(tensor));
    return {};
  }

  Status TakeBinary(const Parameter& size, Tensor& tensor) {
    const int64_t* bytes = std::get_if<int64_t>(&size);
    if (bytes == nullptr || *bytes < 0 || static_cast<uint64_t>(*bytes) > binary_.size()) {
      return Malformed(fmt::format("input '{}': binary_data_size must be an integer from 0 to the "
                                   "{} bytes that follow",
                                   tensor.name, binary_.size()))
          .WithField(tensor.name);
    }
    tensor.data = binary_.substr(0, static_cast<size_t>(*bytes));
    binary_.remove_prefix(static_cast<size_t>(*bytes));
    return {};
  }

  static Status ReadData(const Json* data, Tensor& tensor) {
    if (data == nullptr || data->AsArray() == nullptr) {
      return Malformed(fmt::format("input '{}': must specify 'data' or the parameter "
                                   "'binary_data_size'",
                                   tensor.name))
          .WithField(tensor.name);
    }
    return AppendNested(*data, tensor);
  }

  Status ReadOutputs(const Json& json) {
    if (json.AsArray() == nullptr) {
      return Malformed("Unable to parse 'outputs': it must be an array").WithField("outputs");
    }
    for (const Json& output : *json.AsArray()) {
      RequestedOutput asked;
      TANDEM_ASSIGN_OR_RETURN(asked.name, StringMember(output, "name"));
      TANDEM_ASSIGN_OR_RETURN(asked.parameters, ParametersOf(output));
      TANDEM_ASSIGN_OR_RETURN(asked.shared_memory,
                              CheckTensorParameters(asked.name, asked.parameters));
      request_.outputs.push_back(std::move(asked));
    }
    return {};
  }

  std::string_view binary_;  // not taken yet
  InferRequest request_;
};

bool IsTrue(const Parameters& parameters, std::string_view name, bool otherwise) {
  const auto found = parameters.find(name);
  return found == parameters.end() ? otherwise : found->second == Parameter(true);
}

bool IsInSharedMemory(const InferRequest& request, std::string_view output) {
  const RequestedOutput* asked = request.Asked(output);
  return asked != nullptr && asked->shared_memory.has_value();
}

bool IsBinary(const InferRequest& request, std::string_view output) {
  const bool otherwise = IsTrue(request.parameters, kBinaryOutput, false);
  const RequestedOutput* asked = request.Asked(output);
  return asked == nullptr ? otherwise : IsTrue(asked->parameters, kBinaryData, otherwise);
}

}  // namespace

Result<InferRequest> ParseInfer(std::string_view body, std::optional<size_t> json_bytes) {
  if (json_bytes == size_t{0}) {
    return Unimplemented("a request without a JSON header is not supported by this server");
  }
  if (json_bytes > body.size()) {
    return Malformed(fmt::format("the header gives {} bytes of JSON, but the body has {}",
                                 *json_bytes, body.size()));
  }
  const std::string_view text = body.substr(0, json_bytes.value_or(body.size()));
  const Result<Json> json = ParseJson(text);
  if (!json.ok()) return json.status().Annotate("failed to parse the request JSON buffer");
  if (json->AsObject() == nullptr) {
    return Malformed("failed to parse the request JSON buffer: the body must be an object");
  }
  return InferReader(body.substr(text.size())).Read(*json);
}

InferBody FormatInfer(const InferRequest& request, const InferResponse& response) {
  InferBody body;
  std::string binary;
  bool has_binary = false;
  JsonWriter writer(body.bytes);
  writer.BeginObject();
  if (!response.id.empty()) writer.Key("id").String(response.id);
  writer.Key("model_name").String(response.model_name);
  writer.Key("model_version").String(response.model_version);
  if (!response.parameters.empty()) {
    writer.Key("parameters").BeginObject();
    for (const auto& [name, value] : response.parameters) {
      writer.Key(name);
      WriteParameter(value, writer);
    }
    writer.EndObject();
  }
  writer.Key("outputs").BeginArray();
  for (const Tensor& tensor : response.outputs) {
    writer.BeginObject().Key("name").String(tensor.name);
    writer.Key("datatype").String(DataTypeName(tensor.type)).Key("shape").BeginArray();
    for (const int64_t dim : tensor.shape) writer.Int(dim);
    writer.EndArray();
    if (IsInSharedMemory(request, tensor.name)) {
      // It has no data here.
    } else if (IsBinary(request, tensor.name)) {
      has_binary = true;
      writer.Key("parameters").BeginObject().Key(kBinarySize);
      writer.Int(static_cast<int64_t>(tensor.data.size())).EndObject();
      binary += tensor.data;
    } else {
      writer.Key("data").BeginArray();
      WriteElements(tensor, writer);
      writer.EndArray();
    }
    writer.EndObject();
  }
  writer.EndArray().EndObject();
  if (has_binary) body.json_bytes = body.bytes.size();
  body.bytes += binary;
  return body;
}

}  // namespace tandem::serve::kserve
