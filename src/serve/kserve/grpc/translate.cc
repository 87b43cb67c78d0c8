#include "serve/kserve/grpc/translate.h"

#include <fmt/format.h>
#include <grpc_service.pb.h>
#include <grpcpp/support/status.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "base/little_endian.h"
#include "base/printable.h"
#include "base/reason.h"
#include "serve/kserve/model_metadata.h"
#include "serve/kserve/request_rules.h"

namespace tandem::serve::kserve {
namespace {

using Input = inference::ModelInferRequest::InferInputTensor;
using Contents = inference::InferTensorContents;

Status InputError(const Input& input, std::string_view sentence) {
  return InvalidArgument(fmt::format("input '{}': {}", Printable(input.name()), sentence))
      .WithField(input.name());
}

Status NoValue(std::string_view parameter) {
  return InvalidArgument(fmt::format("parameter '{}' has no value", Printable(parameter)))
      .WithField(parameter);
}

Result<Parameter> FromParameter(std::string_view name, const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return Parameter(parameter.bool_param());
    case inference::InferParameter::kInt64Param:
      return Parameter(parameter.int64_param());
    case inference::InferParameter::kUint64Param:
      return Parameter(parameter.uint64_param());
    case inference::InferParameter::kDoubleParam:
      return Parameter(parameter.double_param());
    case inference::InferParameter::kStringParam:
      return Parameter(parameter.string_param());
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return NoValue(name);
}

Result<Parameter> FromParameter(std::string_view name,
                                const inference::ModelRepositoryParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::ModelRepositoryParameter::kBoolParam:
      return Parameter(parameter.bool_param());
    case inference::ModelRepositoryParameter::kInt64Param:
      return Parameter(parameter.int64_param());
    case inference::ModelRepositoryParameter::kStringParam:
      return Parameter(parameter.string_param());
    case inference::ModelRepositoryParameter::kBytesParam:
      return InvalidArgument(fmt::format("parameter '{}': bytes are not supported by this server: "
                                         "the files of a model cannot be sent to it",
                                         Printable(name)))
          .WithField(name);
    case inference::ModelRepositoryParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return NoValue(name);
}

Result<Parameter> FromParameter(std::string_view name,
                                const inference::LogSettingsRequest::SettingValue& parameter) {
  using Setting = inference::LogSettingsRequest::SettingValue;
  switch (parameter.parameter_choice_case()) {
    case Setting::kBoolParam:
      return Parameter(parameter.bool_param());
    case Setting::kUint32Param:
      return Parameter(int64_t{parameter.uint32_param()});
    case Setting::kStringParam:
      return Parameter(parameter.string_param());
    case Setting::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return NoValue(name);
}

template <typename Message>
Result<Parameters> FromParameters(const google::protobuf::Map<std::string, Message>& parameters) {
  Parameters values;
  for (const auto& [name, parameter] : parameters) {
    TANDEM_ASSIGN_OR_RETURN(values[name], FromParameter(name, parameter));
  }
  return values;
}

// Appends the elements, each as an element of the tensor, which is narrower for the small integers.
template <typename Element, typename Values>
Status AppendElements(const Input& input, const Values& values, std::string& data) {
  for (const auto value : values) {
    if constexpr (sizeof(Element) < sizeof(value)) {
      if (value < std::numeric_limits<Element>::min() ||
          value > std::numeric_limits<Element>::max()) {
        return InputError(input, fmt::format("{} is no {}", value, input.datatype()));
      }
    }
    AppendLittleEndian(static_cast<Element>(value), data);
  }
  return {};
}

Status AppendContents(const Input& input, DataType type, std::string& data) {
  const Contents& contents = input.contents();
  return VisitType(type, [&]<typename T>(std::type_identity<T>) -> Status {
    if constexpr (std::is_same_v<T, std::string_view>) {
      for (const std::string& value : contents.bytes_contents()) AppendString(value, data);
      return {};
    } else if constexpr (std::is_same_v<T, bool>) {
      for (const bool value : contents.bool_contents()) data += value ? '\1' : '\0';
      return {};
    } else if constexpr (std::is_same_v<T, int64_t>) {
      return AppendElements<T>(input, contents.int64_contents(), data);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      return AppendElements<T>(input, contents.uint64_contents(), data);
    } else if constexpr (kIsInteger<T> && std::is_signed_v<T>) {
      return AppendElements<T>(input, contents.int_contents(), data);
    } else if constexpr (kIsInteger<T>) {
      return AppendElements<T>(input, contents.uint_contents(), data);
    } else if constexpr (std::is_same_v<T, float>) {
      return AppendElements<T>(input, contents.fp32_contents(), data);
    } else if constexpr (std::is_same_v<T, double>) {
      return AppendElements<T>(input, contents.fp64_contents(), data);
    } else {
      return InputError(input, fmt::format("{} has no contents of its own: send it in "
                                           "raw_input_contents",
                                           input.datatype()));
    }
  });
}

int NumElementsOf(const Contents& contents) {
  return contents.bool_contents_size() + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

// The contents are all in the field of the tensor's type.
Status ReadContents(const Input& input, Tensor& tensor) {
  if (tensor.type == DataType::kFp16 || tensor.type == DataType::kBf16 ||
      NumElementsOf(input.contents()) > 0) {
    TANDEM_RETURN_IF_ERROR(AppendContents(input, tensor.type, tensor.data));
  }
  const bool is_bytes = tensor.type == DataType::kBytes;
  const size_t found = is_bytes ? input.contents().bytes_contents_size()
                                : tensor.data.size() / ElementBytes(tensor.type);
  if (found != static_cast<size_t>(NumElementsOf(input.contents()))) {
    return InputError(
        input, fmt::format("it is {}, but its contents are of another type", input.datatype()));
  }
  return {};
}

bool IsInSharedMemory(const Input& input) {
  return input.parameters().contains("shared_memory_region");
}

// The tensor without its data.
Result<Tensor> Described(const Input& input) {
  Tensor tensor;
  tensor.name = input.name();
  if (tensor.name.empty()) return InvalidArgument("an input has no name").WithField("inputs");
  const std::optional<DataType> type = DataTypeNamed(input.datatype());
  if (!type) {
    return InputError(input, fmt::format("there is no data type '{}'; types are named as in INT32 "
                                         "or BYTES",
                                         Printable(input.datatype())));
  }
  tensor.type = *type;
  tensor.shape.assign(input.shape().begin(), input.shape().end());
  return tensor;
}

Status ReadInputs(const inference::ModelInferRequest& message, InferRequest& request) {
  const int num_raw = message.raw_input_contents_size();
  const bool is_raw = num_raw > 0;
  const auto num_sent =
      message.inputs_size() -
      std::count_if(message.inputs().begin(), message.inputs().end(), IsInSharedMemory);
  if (is_raw && num_raw != num_sent) {
    return InvalidArgument(fmt::format("raw_input_contents has {} entries for {} inputs; it needs "
                                       "one for each",
                                       num_raw, num_sent))
        .WithField("raw_input_contents");
  }
  int next_raw = 0;
  for (const Input& input : message.inputs()) {
    const bool has_contents = NumElementsOf(input.contents()) > 0;
    TANDEM_ASSIGN_OR_RETURN(Tensor tensor, Described(input));
    TANDEM_ASSIGN_OR_RETURN(const Parameters parameters, FromParameters(input.parameters()));
    TANDEM_ASSIGN_OR_RETURN(std::optional<SharedMemoryRange> range,
                            CheckTensorParameters(tensor.name, parameters));
    if (range) {
      if (has_contents) {
        return InputError(input, "unexpected 'content' provided when using shared memory");
      }
      request.shared_inputs.push_back({request.inputs.size(), *std::move(range)});
    } else if (is_raw) {
      if (has_contents) {
        return InputError(input,
                          "contents field must not be specified when using "
                          "raw_input_contents");
      }
      tensor.data = message.raw_input_contents(next_raw++);
      TANDEM_RETURN_IF_ERROR(CheckData(tensor));
    } else {
      TANDEM_RETURN_IF_ERROR(ReadContents(input, tensor));
      TANDEM_RETURN_IF_ERROR(CheckData(tensor));
    }
    request.inputs.push_back(std::move(tensor));
  }
  return {};
}

// Takes the protocol's own parameters out of those for the model.
Status ReadParameters(const inference::ModelInferRequest& message, ReceivedRequest& received) {
  Parameters& parameters = received.request.parameters;
  TANDEM_ASSIGN_OR_RETURN(parameters, FromParameters(message.parameters()));
  if (const auto found = parameters.find(kEmptyFinalParameter); found != parameters.end()) {
    const bool* value = std::get_if<bool>(&found->second);
    if (value == nullptr) {
      return InvalidArgument(fmt::format("parameter '{}' must be a bool", kEmptyFinalParameter))
          .WithField(kEmptyFinalParameter);
    }
    received.wants_empty_final = *value;
    parameters.erase(found);
  }
  return CheckParameters(parameters);
}

void SetParameter(const Parameter& value, inference::InferParameter& parameter) {
  if (const bool* truth = std::get_if<bool>(&value)) parameter.set_bool_param(*truth);
  if (const int64_t* number = std::get_if<int64_t>(&value)) parameter.set_int64_param(*number);
  if (const uint64_t* number = std::get_if<uint64_t>(&value)) parameter.set_uint64_param(*number);
  if (const double* number = std::get_if<double>(&value)) parameter.set_double_param(*number);
  if (const std::string* text = std::get_if<std::string>(&value)) parameter.set_string_param(*text);
}

using TensorRows =
    google::protobuf::RepeatedPtrField<inference::ModelMetadataResponse::TensorMetadata>;

void DescribeTensors(std::span<const TensorMetadata> tensors, TensorRows& rows) {
  for (const TensorMetadata& tensor : tensors) {
    inference::ModelMetadataResponse::TensorMetadata& row = *rows.Add();
    row.set_name(tensor.name);
    row.set_datatype(std::string(DataTypeName(tensor.type)));
    row.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  }
}

void SetTime(const CountedTime& time, inference::StatisticDuration& message) {
  message.set_count(time.count);
  message.set_ns(static_cast<uint64_t>(time.time.count()));
}

}  // namespace

Result<Parameters> ParametersOf(const inference::RepositoryModelLoadRequest& message) {
  return FromParameters(message.parameters());
}
Result<Parameters> ParametersOf(const inference::RepositoryModelUnloadRequest& message) {
  return FromParameters(message.parameters());
}
Result<Parameters> ParametersOf(const inference::LogSettingsRequest& message) {
  return FromParameters(message.settings());
}

Result<ReceivedRequest> FromMessage(const inference::ModelInferRequest& message) {
  ReceivedRequest received;
  InferRequest& request = received.request;
  request.model_name = message.model_name();
  request.model_version = message.model_version();
  request.id = message.id();
  TANDEM_RETURN_IF_ERROR(ReadParameters(message, received));
  TANDEM_RETURN_IF_ERROR(ReadInputs(message, request));
  for (const auto& output : message.outputs()) {
    TANDEM_ASSIGN_OR_RETURN(Parameters parameters, FromParameters(output.parameters()));
    TANDEM_ASSIGN_OR_RETURN(std::optional<SharedMemoryRange> range,
                            CheckTensorParameters(output.name(), parameters));
    request.outputs.push_back({output.name(), std::move(parameters), std::move(range)});
  }
  return received;
}

void ToMessage(const InferResponse& response, inference::ModelInferResponse& message) {
  message.Clear();
  message.set_model_name(response.model_name);
  message.set_model_version(response.model_version);
  message.set_id(response.id);
  for (const auto& [name, value] : response.parameters) {
    SetParameter(value, (*message.mutable_parameters())[name]);
  }
  for (const Tensor& tensor : response.outputs) {
    inference::ModelInferResponse::InferOutputTensor& output = *message.add_outputs();
    output.set_name(tensor.name);
    output.set_datatype(std::string(DataTypeName(tensor.type)));
    output.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    *message.add_raw_output_contents() = tensor.data;
  }
}

void DescribeModel(const inference::ModelConfig& config, std::string_view version,
                   inference::ModelMetadataResponse& message) {
  const ModelMetadata metadata = MetadataOf(config);
  message.set_name(metadata.name);
  message.add_versions(std::string(version));
  message.set_platform(metadata.platform);
  DescribeTensors(metadata.inputs, *message.mutable_inputs());
  DescribeTensors(metadata.outputs, *message.mutable_outputs());
}

void DescribeStatistics(std::string_view name, std::string_view version,
                        const StatisticsSnapshot& figures, inference::ModelStatistics& message) {
  message.set_name(std::string(name));
  message.set_version(std::string(version));
  message.set_last_inference(figures.last_inference);
  message.set_inference_count(figures.inference_count);
  message.set_execution_count(figures.execution_count);
  inference::InferStatistics& times = *message.mutable_inference_stats();
  SetTime(figures.success, *times.mutable_success());
  SetTime(figures.failure, *times.mutable_fail());
  SetTime(figures.queue, *times.mutable_queue());
  SetTime({}, *times.mutable_compute_input());
  SetTime(figures.compute, *times.mutable_compute_infer());
  SetTime({}, *times.mutable_compute_output());
  SetTime({}, *times.mutable_cache_hit());
  SetTime({}, *times.mutable_cache_miss());
}

int GrpcCodeOf(const Status& status) {
  if (status.reason() == Reason::kQueueFull || status.reason() == Reason::kQueueWait) {
    return ::grpc::UNAVAILABLE;
  }
  if (status.reason() == Reason::kAlreadyExists) return ::grpc::ALREADY_EXISTS;
  switch (status.code()) {
    case Code::kOk:
      return ::grpc::OK;
    case Code::kInvalidArgument:
      return ::grpc::INVALID_ARGUMENT;
    case Code::kNotFound:
      return ::grpc::NOT_FOUND;
    case Code::kFailedPrecondition:
      return ::grpc::FAILED_PRECONDITION;
    case Code::kResourceExhausted:
      return ::grpc::RESOURCE_EXHAUSTED;
    case Code::kUnavailable:
      return ::grpc::UNAVAILABLE;
    case Code::kDeadlineExceeded:
      return ::grpc::DEADLINE_EXCEEDED;
    case Code::kCancelled:
      return ::grpc::CANCELLED;
    case Code::kUnauthenticated:
      return ::grpc::UNAUTHENTICATED;
    case Code::kUnimplemented:
      return ::grpc::UNIMPLEMENTED;
    case Code::kDataLoss:
      return ::grpc::DATA_LOSS;
    case Code::kInternal:
      break;
  }
  return ::grpc::INTERNAL;
}

}  // namespace tandem::serve::kserve
