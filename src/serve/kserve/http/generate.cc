#include "serve/kserve/http/generate.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <map>
#include <ranges>
#include <utility>
#include <vector>

#include "serve/json.h"
#include "serve/kserve/check_request.h"
#include "serve/kserve/http/tensor_json.h"
#include "serve/kserve/request_rules.h"

namespace tandem::serve::kserve {
namespace {

// The shape that `count` elements fill.
std::vector<int64_t> ShapeOf(const inference::ModelConfig& config,
                             const inference::ModelInput& input, int64_t count) {
  std::vector<int64_t> shape(input.dims().begin(), input.dims().end());
  if (config.max_batch_size() > 0) shape.insert(shape.begin(), -1);
  int64_t rest = count;
  for (const int64_t dim : shape) {
    if (dim > 0) rest /= dim;
  }
  bool is_innermost = true;
  for (int64_t& dim : std::ranges::reverse_view(shape)) {
    if (dim == -1) dim = std::exchange(is_innermost, false) ? rest : 1;
  }
  return shape;
}

class BodyReader {
 public:
  BodyReader(const inference::ModelConfig& config, InferRequest& request)
      : config_(config), request_(request) {}

  Status Read(const Json& body) {
    for (const JsonMember& member : *body.AsObject()) {
      if (member.name == "id") {
        if (member.value.AsString() == nullptr) {
          return InvalidArgument(
                     "unable to parse 'id': attempt to access JSON non-string as string")
              .WithField("id");
        }
        request_.id = *member.value.AsString();
      } else if (member.name == "parameters") {
        if (member.value.AsObject() == nullptr) {
          return InvalidArgument("Expected 'parameters' to be an object").WithField("parameters");
        }
        for (const JsonMember& inner : *member.value.AsObject()) {
          TANDEM_RETURN_IF_ERROR(ReadMember(inner));
        }
      } else {
        TANDEM_RETURN_IF_ERROR(ReadMember(member));
      }
    }
    return {};
  }

 private:
  Status ReadMember(const JsonMember& member) {
    for (const inference::ModelInput& input : config_.input()) {
      if (input.name() == member.name) return ReadInput(input, member.value);
    }
    return ReadParameter(member.name, member.value, request_.parameters);
  }

  Status ReadInput(const inference::ModelInput& input, const Json& value) {
    if (request_.Input(input.name()) != nullptr) {
      return InvalidArgument(fmt::format("input '{}' already exists in request", input.name()))
          .WithField(input.name());
    }
    Tensor tensor{input.name(), TypeOf(input.data_type()), {}, {}};
    int64_t count = 1;
    if (const Json::Array* list = value.AsArray()) {
      count = static_cast<int64_t>(list->size());
      for (const Json& element : *list) TANDEM_RETURN_IF_ERROR(AppendElement(element, tensor));
    } else {
      TANDEM_RETURN_IF_ERROR(AppendElement(value, tensor));
    }
    tensor.shape = ShapeOf(config_, input, count);
    request_.inputs.push_back(std::move(tensor));
    return {};
  }

  const inference::ModelConfig& config_;
  InferRequest& request_;
};

void WriteTensor(const Tensor& tensor, JsonWriter& writer) {
  const Result<int64_t> count = NumElements(tensor.shape);
  if (count.ok() && *count == 1) return WriteElements(tensor, writer);
  writer.BeginArray();
  WriteElements(tensor, writer);
  writer.EndArray();
}

}  // namespace

Result<InferRequest> ParseGenerate(const inference::ModelConfig& config,
                                   std::string_view body_text) {
  JsonLimits limits;
  limits.allow_duplicates = true;  // checked by the rule, with its own message
  Result<Json> body = ParseJson(body_text.empty() ? "{}" : body_text, limits);
  if (!body.ok()) return body.status().Annotate("failed to parse the request JSON buffer");
  if (body->AsObject() == nullptr) {
    return InvalidArgument("failed to parse the request JSON buffer: the body must be an object");
  }
  InferRequest request;
  request.model_name = config.name();
  TANDEM_RETURN_IF_ERROR(BodyReader(config, request).Read(*body));
  TANDEM_RETURN_IF_ERROR(CheckParameters(request.parameters));
  return request;
}

std::string FormatGenerated(const InferResponse& response) {
  std::map<std::string_view, const Tensor*> tensors;
  for (const Tensor& tensor : response.outputs) tensors.emplace(tensor.name, &tensor);
  const Parameter id = response.id;
  const Parameter model_name = response.model_name;
  const Parameter model_version = response.model_version;
  std::map<std::string_view, const Parameter*> others = {{"model_name", &model_name},
                                                         {"model_version", &model_version}};
  if (!response.id.empty()) others.emplace("id", &id);
  for (const auto& [name, value] : response.parameters) others.emplace(name, &value);

  std::string out;
  JsonWriter writer(out);
  writer.BeginObject();
  auto tensor = tensors.begin();
  auto other = others.begin();
  while (tensor != tensors.end() || other != others.end()) {
    const bool is_tensor =
        other == others.end() || (tensor != tensors.end() && tensor->first < other->first);
    if (is_tensor) {
      writer.Key(tensor->first);
      WriteTensor(*tensor->second, writer);
      ++tensor;
    } else {
      writer.Key(other->first);
      WriteParameter(*other->second, writer);
      ++other;
    }
  }
  writer.EndObject();
  return out;
}

}  // namespace tandem::serve::kserve
