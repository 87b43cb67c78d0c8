#include "serve/kserve/models/builtin_models.h"

#include <fmt/format.h>
#include <model_config.pb.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/little_endian.h"
#include "serve/kserve/check_request.h"
#include "serve/kserve/models/task_model.h"
#include "serve/kserve/models/timed_model.h"

namespace tandem::serve::kserve {
namespace {

constexpr double kMostDelaySeconds = 24 * 60 * 60;
constexpr size_t kMostTextBytes = 64 << 20;  // of one response

template <typename Tensor>
void Fill(Tensor& tensor, const char* name, inference::DataType type,
          std::initializer_list<int64_t> dims) {
  tensor.set_name(name);
  tensor.set_data_type(type);
  for (const int64_t dim : dims) tensor.add_dims(dim);
}

// A model that works on certain tensors only has them under the names given, with that type.
template <typename Tensors>
Status Require(const Tensors& tensors, std::initializer_list<const char*> names,
               inference::DataType type) {
  for (const char* name : names) {
    bool is_there = false;
    for (const auto& tensor : tensors) {
      is_there = is_there || (tensor.name() == name && tensor.data_type() == type);
    }
    if (is_there) continue;
    return FieldError(name, fmt::format("is required by this backend, with the data type {}",
                                        inference::DataType_Name(type)));
  }
  return {};
}

template <typename Tensors>
Status CheckTypes(const Tensors& tensors) {
  for (const auto& tensor : tensors) {
    const bool has_type = inference::DataType_IsValid(tensor.data_type()) &&
                          tensor.data_type() != inference::TYPE_INVALID;
    if (tensor.name().empty()) return FieldError("name", "every tensor needs one");
    if (!has_type) return FieldError(tensor.name(), "needs a data_type");
  }
  return {};
}

// ---- identity ----

Result<Nanos> ExecuteDelay(const inference::ModelConfig& config) {
  constexpr const char* kName = "execute_delay_ms";
  const auto found = config.parameters().find(kName);
  if (found == config.parameters().end() || found->second.string_value().empty()) return Nanos(0);
  const std::string& text = found->second.string_value();
  int64_t ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  if (error != std::errc() || end != text.data() + text.size() || ms < 0 ||
      static_cast<double>(ms) > 1e3 * kMostDelaySeconds) {
    return FieldError(kName, fmt::format("must be a number of milliseconds up to a day; it is "
                                         "\"{}\"",
                                         text));
  }
  return Nanos(std::chrono::milliseconds(ms));
}

Result<InferModelPtr> MakeIdentity(const inference::ModelConfig& config) {
  if (config.input_size() != config.output_size() || config.input().empty()) {
    return FieldError("output", "a model of backend \"identity\" has as many outputs as inputs");
  }
  std::vector<std::pair<std::string, std::string>> pairs;
  for (int i = 0; i < config.input_size(); ++i) {
    if (config.input(i).data_type() != config.output(i).data_type()) {
      return FieldError(config.output(i).name(),
                        "must have the data type of its input " + config.input(i).name());
    }
    pairs.emplace_back(config.input(i).name(), config.output(i).name());
  }
  TANDEM_ASSIGN_OR_RETURN(const Nanos delay, ExecuteDelay(config));
  return MakeTimedModel(config, [pairs, delay](const InferRequest& request) -> Result<Series> {
    InferResponse response;
    for (const auto& [input, output] : pairs) {
      const Tensor* tensor = request.Input(input);
      if (tensor == nullptr) continue;  // it is optional
      response.outputs.push_back(*tensor);
      response.outputs.back().name = output;
    }
    Series series;
    series.response = [response](int64_t) { return response; };
    series.delay = [delay](int64_t) { return delay; };
    return series;
  });
}

// ---- add_sub ----

// Integers wrap around.
template <typename T, typename Operation>
T Computed(T x, T y, Operation&& operation) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(operation(static_cast<Unsigned>(x), static_cast<Unsigned>(y)));
  } else {
    return operation(x, y);
  }
}

template <typename T>
void AddAndSubtract(const Tensor& a, const Tensor& b, Tensor& sum, Tensor& difference) {
  for (size_t at = 0; at < a.data.size(); at += sizeof(T)) {
    const auto x = LoadLittleEndian<T>(a.data.data() + at);
    const auto y = LoadLittleEndian<T>(b.data.data() + at);
    AppendLittleEndian(Computed(x, y, std::plus<>()), sum.data);
    AppendLittleEndian(Computed(x, y, std::minus<>()), difference.data);
  }
}

using AddAndSubtractFunction = void (*)(const Tensor&, const Tensor&, Tensor&, Tensor&);

// Null for a type that is not computed with.
AddAndSubtractFunction AddAndSubtractOf(DataType type) {
  return VisitType(type, []<typename T>(std::type_identity<T>) -> AddAndSubtractFunction {
    if constexpr (kIsInteger<T> || std::is_floating_point_v<T>) return AddAndSubtract<T>;
    return nullptr;
  });
}

Result<InferModelPtr> MakeAddSub(inference::ModelConfig config) {
  if (config.input().empty() && config.output().empty()) {
    for (const char* name : {"INPUT0", "INPUT1"}) {
      Fill(*config.add_input(), name, inference::TYPE_INT32, {16});
    }
    for (const char* name : {"OUTPUT0", "OUTPUT1"}) {
      Fill(*config.add_output(), name, inference::TYPE_INT32, {16});
    }
  }
  if (config.input().empty()) return FieldError("INPUT0", "is missing");
  const inference::DataType type = config.input(0).data_type();
  TANDEM_RETURN_IF_ERROR(Require(config.input(), {"INPUT0", "INPUT1"}, type));
  TANDEM_RETURN_IF_ERROR(Require(config.output(), {"OUTPUT0", "OUTPUT1"}, type));
  const AddAndSubtractFunction compute = AddAndSubtractOf(TypeOf(type));
  if (compute == nullptr) {
    return FieldError("INPUT0", "must have a data type of numbers, and not of 16-bit floats");
  }
  for (inference::ModelInput& input : *config.mutable_input()) input.set_optional(false);
  return MakeTaskModel(config, [compute](const InferRequest& request) -> Result<InferResponse> {
    const Tensor& a = *request.Input("INPUT0");
    const Tensor& b = *request.Input("INPUT1");
    if (a.shape != b.shape) return FieldError("INPUT1", "must have the shape of INPUT0");
    Tensor sum{"OUTPUT0", a.type, a.shape, {}};
    Tensor difference{"OUTPUT1", a.type, a.shape, {}};
    compute(a, b, sum, difference);
    InferResponse response;
    response.outputs = {std::move(sum), std::move(difference)};
    return response;
  });
}

// ---- repeat ----

Result<Series> Repeat(const InferRequest& request) {
  const Tensor& in = *request.Input("IN");
  const Tensor& delays = *request.Input("DELAY");
  if (in.shape != delays.shape) {
    return FieldError("DELAY", fmt::format("expected IN and DELAY shape to match, got {} and {} "
                                           "elements",
                                           Integers(in).size(), Integers(delays).size()));
  }
  Series series;
  series.count = static_cast<int64_t>(in.data.size() / sizeof(int32_t));
  series.is_last_final = false;
  series.response = [in](int64_t index) {
    Tensor out{"OUT", DataType::kInt32, {1}, {}};
    out.data = in.data.substr(static_cast<size_t>(index) * sizeof(int32_t), sizeof(int32_t));
    Tensor idx{"IDX", DataType::kUint32, {1}, {}};
    AppendLittleEndian(static_cast<uint32_t>(index), idx.data);
    InferResponse response;
    response.outputs = {std::move(out), std::move(idx)};
    return response;
  };
  series.delay = [ms = Integers(delays)](int64_t index) -> Nanos {
    return std::chrono::milliseconds(ms[static_cast<size_t>(index)]);
  };
  return series;
}

Result<InferModelPtr> MakeRepeat(inference::ModelConfig config) {
  if (config.input().empty() && config.output().empty()) {
    Fill(*config.add_input(), "IN", inference::TYPE_INT32, {-1});
    Fill(*config.add_input(), "DELAY", inference::TYPE_UINT32, {-1});
    Fill(*config.add_input(), "WAIT", inference::TYPE_UINT32, {1});
    Fill(*config.add_output(), "OUT", inference::TYPE_INT32, {1});
    Fill(*config.add_output(), "IDX", inference::TYPE_UINT32, {1});
    config.mutable_model_transaction_policy()->set_decoupled(true);
  }
  TANDEM_RETURN_IF_ERROR(Require(config.input(), {"IN"}, inference::TYPE_INT32));
  TANDEM_RETURN_IF_ERROR(Require(config.input(), {"DELAY", "WAIT"}, inference::TYPE_UINT32));
  TANDEM_RETURN_IF_ERROR(Require(config.output(), {"OUT"}, inference::TYPE_INT32));
  TANDEM_RETURN_IF_ERROR(Require(config.output(), {"IDX"}, inference::TYPE_UINT32));
  if (config.max_batch_size() != 0) {
    return FieldError("max_batch_size", "must be 0 for backend \"repeat\"");
  }
  if (!config.model_transaction_policy().decoupled()) {
    return FieldError("decoupled",
                      "must be true for backend \"repeat\": it gives any number of "
                      "responses");
  }
  for (inference::ModelInput& input : *config.mutable_input()) input.set_optional(false);
  return MakeTimedModel(config, Repeat);
}

// ---- mock_llm ----

const Parameter* FindParameter(const InferRequest& request, std::string_view name) {
  const auto found = request.parameters.find(name);
  return found == request.parameters.end() ? nullptr : &found->second;
}

Result<bool> Flag(const InferRequest& request, std::string_view name) {
  const Parameter* parameter = FindParameter(request, name);
  if (parameter == nullptr) return false;
  if (const bool* flag = std::get_if<bool>(parameter)) return *flag;
  return FieldError(name, "must be true or false");
}

Result<double> Number(const InferRequest& request, std::string_view name, double otherwise,
                      double most) {
  const Parameter* parameter = FindParameter(request, name);
  if (parameter == nullptr) return otherwise;
  const auto number = std::visit(
      [](const auto& value) -> std::optional<double> {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) {
          return static_cast<double>(value);
        }
        return std::nullopt;
      },
      *parameter);
  if (number && *number <= most) return std::max(*number, 0.0);
  return FieldError(name, fmt::format("must be a number of at most {}", most));
}

// The code of the error that a request asks for, by Triton's name.
Result<Code> AskedCode(const InferRequest& request) {
  constexpr std::pair<std::string_view, Code> kCodes[] = {
      {"INTERNAL", Code::kInternal},         {"INVALID_ARG", Code::kInvalidArgument},
      {"NOT_FOUND", Code::kNotFound},        {"UNAVAILABLE", Code::kUnavailable},
      {"UNSUPPORTED", Code::kUnimplemented}, {"CANCELLED", Code::kCancelled}};
  const Parameter* parameter = FindParameter(request, "ERROR_CODE");
  if (parameter == nullptr) return Code::kInternal;
  const auto* name = std::get_if<std::string>(parameter);
  for (const auto& [code_name, code] : kCodes) {
    if (name != nullptr && *name == code_name) return code;
  }
  return FieldError("ERROR_CODE",
                    "must be INTERNAL, INVALID_ARG, NOT_FOUND, UNAVAILABLE, UNSUPPORTED or "
                    "CANCELLED");
}

// Each element `times` times, along the last dimension.
Result<Tensor> Repeated(const Tensor& prompt, int64_t times) {
  if (prompt.data.size() > kMostTextBytes / static_cast<size_t>(std::max<int64_t>(times, 1))) {
    return FieldError("REPETITION", fmt::format("makes a text above {} bytes", kMostTextBytes));
  }
  Tensor text{"TEXT", prompt.type, prompt.shape, {}};
  text.shape.back() *= times;
  for (const std::string_view element : Strings(prompt)) {
    for (int64_t i = 0; i < times; ++i) AppendString(element, text.data);
  }
  return text;
}

Result<Series> Chat(const InferRequest& request, bool is_decoupled) {
  constexpr double kMostResponses = 1 << 30;
  TANDEM_ASSIGN_OR_RETURN(const double repetition,
                          Number(request, "REPETITION", 1, kMostResponses));
  TANDEM_ASSIGN_OR_RETURN(const double delay, Number(request, "DELAY", 0, kMostDelaySeconds));
  TANDEM_ASSIGN_OR_RETURN(const bool fails, Flag(request, "FAIL_LAST"));
  TANDEM_ASSIGN_OR_RETURN(const Code code, AskedCode(request));
  TANDEM_ASSIGN_OR_RETURN(const bool has_no_elements, Flag(request, "OUTPUT_0_DIM"));
  const auto times = static_cast<int64_t>(repetition);
  const std::vector<bool> streams = Bools(*request.Input("STREAM"));
  const bool is_streamed = !streams.empty() && streams.front();
  if (is_streamed && !is_decoupled) return Internal("STREAM only supported in decoupled mode");
  Tensor text = *request.Input("PROMPT");
  text.name = "TEXT";
  if (is_decoupled && has_no_elements) text = {"TEXT", DataType::kBytes, {0}, {}};
  if (!is_decoupled) {
    TANDEM_ASSIGN_OR_RETURN(text, Repeated(text, times));
  }
  InferResponse response;
  response.outputs.push_back(std::move(text));
  Series series;
  series.response = [response](int64_t) { return response; };
  if (!is_streamed) return series;
  const auto pause = std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(delay));
  series.count = times;
  series.delay = [pause](int64_t) { return pause; };
  series.is_last_final = false;
  if (fails) series.failure = Status(code, "An Error Occurred");
  return series;
}

Result<InferModelPtr> MakeMockLlm(inference::ModelConfig config) {
  if (config.input().empty() && config.output().empty()) {
    Fill(*config.add_input(), "PROMPT", inference::TYPE_STRING, {1, 1});
    Fill(*config.add_input(), "STREAM", inference::TYPE_BOOL, {1, 1});
    Fill(*config.add_output(), "TEXT", inference::TYPE_STRING, {1, -1});
    config.mutable_model_transaction_policy()->set_decoupled(true);
  }
  TANDEM_RETURN_IF_ERROR(Require(config.input(), {"PROMPT"}, inference::TYPE_STRING));
  TANDEM_RETURN_IF_ERROR(Require(config.input(), {"STREAM"}, inference::TYPE_BOOL));
  TANDEM_RETURN_IF_ERROR(Require(config.output(), {"TEXT"}, inference::TYPE_STRING));
  for (inference::ModelInput& input : *config.mutable_input()) {
    if (input.name() == "PROMPT" && input.dims().empty()) {
      return FieldError("PROMPT", "needs a dimension");
    }
    if (input.name() == "PROMPT" || input.name() == "STREAM") input.set_optional(false);
  }
  const bool is_decoupled = config.model_transaction_policy().decoupled();
  return MakeTimedModel(
      config, [is_decoupled](const InferRequest& request) { return Chat(request, is_decoupled); });
}

}  // namespace

Result<InferModelPtr> MakeBuiltinModel(inference::ModelConfig config) {
  TANDEM_RETURN_IF_ERROR(CheckTypes(config.input()));
  TANDEM_RETURN_IF_ERROR(CheckTypes(config.output()));
  if (config.backend() == "identity") return MakeIdentity(config);
  if (config.backend() == "add_sub") return MakeAddSub(std::move(config));
  if (config.backend() == "repeat") return MakeRepeat(std::move(config));
  if (config.backend() == "mock_llm") return MakeMockLlm(std::move(config));
  return Unimplemented(
      fmt::format("{}: a model of backend \"{}\" with these tensors is not one that this server "
                  "has",
                  config.name(), config.backend().empty() ? config.platform() : config.backend()));
}

}  // namespace tandem::serve::kserve
