#include "serve/kserve/check_request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <model_config.pb.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/little_endian.h"

namespace tandem::serve::kserve {
namespace {

const inference::ModelInput* FindInput(const inference::ModelConfig& config,
                                       std::string_view name) {
  for (const inference::ModelInput& input : config.input()) {
    if (input.name() == name) return &input;
  }
  return nullptr;
}

bool IsWide(DataType type) {
  return type == DataType::kInt32 || type == DataType::kUint32 || type == DataType::kInt64 ||
         type == DataType::kUint64;
}

// Whether every value keeps its meaning as `type`.
bool Fits(const std::vector<int64_t>& values, DataType from, DataType to) {
  int64_t low = std::numeric_limits<int64_t>::min();
  int64_t high = std::numeric_limits<int64_t>::max();
  if (to == DataType::kInt32) low = std::numeric_limits<int32_t>::min();
  if (to == DataType::kInt32) high = std::numeric_limits<int32_t>::max();
  if (to == DataType::kUint32) high = std::numeric_limits<uint32_t>::max();
  // Above the largest INT64 a UINT64 reads as negative.
  if (to == DataType::kUint32 || to == DataType::kUint64 || from == DataType::kUint64) low = 0;
  return std::all_of(values.begin(), values.end(),
                     [low, high](int64_t value) { return value >= low && value <= high; });
}

Status ConvertIntegers(DataType type, Tensor& tensor) {
  const std::vector<int64_t> values = Integers(tensor);
  if (!Fits(values, tensor.type, type)) {
    return InvalidArgument(fmt::format("inference input '{}': a value does not fit {}", tensor.name,
                                       DataTypeName(type)))
        .WithField(tensor.name);
  }
  const bool is_short = ElementBytes(type) == sizeof(int32_t);
  tensor.type = type;
  tensor.data.clear();
  for (const int64_t value : values) {
    if (is_short) {
      AppendLittleEndian(static_cast<int32_t>(value), tensor.data);
    } else {
      AppendLittleEndian(value, tensor.data);
    }
  }
  return {};
}

Status CheckType(const inference::ModelConfig& config, const inference::ModelInput& input,
                 Tensor& tensor) {
  const DataType wanted = TypeOf(input.data_type());
  if (tensor.type == wanted) return {};
  if (IsWide(tensor.type) && IsWide(wanted)) return ConvertIntegers(wanted, tensor);
  return InvalidArgument(fmt::format("inference input '{}' data-type is '{}', but model '{}' "
                                     "expects '{}'",
                                     tensor.name, DataTypeName(tensor.type), config.name(),
                                     DataTypeName(wanted)))
      .WithField(tensor.name);
}

Status CheckShape(const inference::ModelConfig& config, const inference::ModelInput& input,
                  const Tensor& tensor) {
  std::vector<int64_t> expected(input.dims().begin(), input.dims().end());
  if (config.max_batch_size() > 0) expected.insert(expected.begin(), -1);
  const auto& got = tensor.shape;
  const bool fits = got.size() == expected.size() &&
                    std::equal(got.begin(), got.end(), expected.begin(),
                               [](int64_t a, int64_t b) { return b == -1 || a == b; });
  if (fits) return {};
  return InvalidArgument(fmt::format("unexpected shape for input '{}' for model '{}'. Expected "
                                     "[{}], got [{}]. ",
                                     tensor.name, config.name(), fmt::join(expected, ","),
                                     fmt::join(got, ",")))
      .WithField(tensor.name);
}

Status CheckRequired(const inference::ModelConfig& config, const InferRequest& request) {
  std::vector<std::string> missing;
  int required = 0;
  for (const inference::ModelInput& input : config.input()) {
    if (input.optional()) continue;
    ++required;
    if (request.Input(input.name()) == nullptr) missing.push_back("'" + input.name() + "'");
  }
  if (missing.empty()) return {};
  std::set<std::string> got;
  for (const Tensor& tensor : request.inputs) got.insert("'" + tensor.name + "'");
  const std::string expected =
      required == config.input_size()
          ? fmt::format("{} inputs", required)
          : fmt::format("number of inputs between {} and {}", required, config.input_size());
  return InvalidArgument(
      fmt::format("expected {} but got {} inputs for model '{}'. Got input(s) [{}], but "
                  "missing required input(s) [{}]. Please provide all required input(s).",
                  expected, request.inputs.size(), config.name(), fmt::join(got, ","),
                  fmt::join(missing, ",")));
}

Status CheckOutputs(const inference::ModelConfig& config, const InferRequest& request) {
  for (const RequestedOutput& asked : request.outputs) {
    const bool known = std::any_of(config.output().begin(), config.output().end(),
                                   [&](const auto& output) { return output.name() == asked.name; });
    if (known) continue;
    return InvalidArgument(fmt::format("unexpected inference output '{}' for model '{}'",
                                       asked.name, config.name()))
        .WithField(asked.name);
  }
  return {};
}

// All inputs of a batched model have its first dimension in common.
Result<int64_t> BatchOf(const inference::ModelConfig& config, const InferRequest& request) {
  if (config.max_batch_size() == 0 || request.inputs.empty()) return 1;
  const int64_t batch = request.inputs.front().shape.front();
  for (const Tensor& tensor : request.inputs) {
    if (tensor.shape.front() == batch) continue;
    return InvalidArgument(fmt::format("input '{}' batch size does not match other inputs for '{}'",
                                       tensor.name, config.name()))
        .WithField(tensor.name);
  }
  if (batch < 1) {
    return InvalidArgument(
        fmt::format("inference request batch-size must be at least 1 for '{}'", config.name()));
  }
  if (batch > config.max_batch_size()) {
    return InvalidArgument(fmt::format("inference request batch-size must be <= {} for '{}'",
                                       config.max_batch_size(), config.name()));
  }
  return batch;
}

}  // namespace

DataType TypeOf(int config_type) {
  static_assert(static_cast<int>(DataType::kBool) + 1 == inference::TYPE_BOOL);
  static_assert(static_cast<int>(DataType::kInt32) + 1 == inference::TYPE_INT32);
  static_assert(static_cast<int>(DataType::kBytes) + 1 == inference::TYPE_STRING);
  static_assert(static_cast<int>(DataType::kBf16) + 1 == inference::TYPE_BF16);
  TANDEM_CHECK(config_type >= inference::TYPE_BOOL && config_type <= inference::TYPE_BF16,
               "a tensor without a type");
  return static_cast<DataType>(config_type - 1);
}

Result<int64_t> CheckRequest(const inference::ModelConfig& config, InferRequest& request) {
  std::set<std::string_view> seen;
  for (Tensor& tensor : request.inputs) {
    const inference::ModelInput* input = FindInput(config, tensor.name);
    if (input == nullptr) {
      return InvalidArgument(fmt::format("unexpected inference input '{}' for model '{}'",
                                         tensor.name, config.name()))
          .WithField(tensor.name);
    }
    if (!seen.insert(tensor.name).second) {
      return InvalidArgument(fmt::format("input '{}' already exists in request", tensor.name))
          .WithField(tensor.name);
    }
    TANDEM_RETURN_IF_ERROR(CheckData(tensor));
    TANDEM_RETURN_IF_ERROR(CheckType(config, *input, tensor));
    TANDEM_RETURN_IF_ERROR(CheckShape(config, *input, tensor));
  }
  TANDEM_RETURN_IF_ERROR(CheckRequired(config, request));
  TANDEM_RETURN_IF_ERROR(CheckOutputs(config, request));
  return BatchOf(config, request);
}

}  // namespace tandem::serve::kserve
