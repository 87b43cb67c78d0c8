#include "serve/kserve/http/tensor_json.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "base/little_endian.h"

namespace tandem::serve::kserve {
namespace {

Status Unparsable(const Tensor& tensor, std::string_view sentence) {
  return InvalidArgument(fmt::format("unable to parse '{}': {}", tensor.name, sentence))
      .WithField(tensor.name);
}

Status WrongKind(const Tensor& tensor, std::string_view is_not, std::string_view wanted) {
  return Unparsable(tensor, fmt::format("attempt to access JSON {} as {}", is_not, wanted));
}

template <typename T>
Status AppendInteger(const Json& value, Tensor& tensor) {
  using Limits = std::numeric_limits<T>;
  if (const uint64_t* large = value.AsUint()) {  // above every int64_t
    if (std::is_same_v<T, uint64_t>) {
      AppendLittleEndian(*large, tensor.data);
      return {};
    }
  } else if (const int64_t* number = value.AsInt()) {
    if (std::in_range<T>(*number)) {
      AppendLittleEndian(static_cast<T>(*number), tensor.data);
      return {};
    }
  } else {
    return Limits::is_signed ? WrongKind(tensor, "non-signed-integer", "signed-integer")
                             : WrongKind(tensor, "non-unsigned-integer", "unsigned-integer");
  }
  return Unparsable(tensor, fmt::format("the value does not fit {}", DataTypeName(tensor.type)));
}

template <typename T>
Status AppendFloat(const Json& value, Tensor& tensor) {
  if (!value.is_number()) return WrongKind(tensor, "non-number", "double");
  AppendLittleEndian(static_cast<T>(*value.Number()), tensor.data);
  return {};
}

}  // namespace

Status AppendElement(const Json& value, Tensor& tensor) {
  switch (tensor.type) {
    case DataType::kBytes:
      if (value.AsString() == nullptr) return WrongKind(tensor, "non-string", "string");
      AppendString(*value.AsString(), tensor.data);
      return {};
    case DataType::kBool:
      if (value.AsBool() == nullptr) return WrongKind(tensor, "non-boolean", "boolean");
      tensor.data += *value.AsBool() ? '\1' : '\0';
      return {};
    case DataType::kUint8:
      return AppendInteger<uint8_t>(value, tensor);
    case DataType::kUint16:
      return AppendInteger<uint16_t>(value, tensor);
    case DataType::kUint32:
      return AppendInteger<uint32_t>(value, tensor);
    case DataType::kUint64:
      return AppendInteger<uint64_t>(value, tensor);
    case DataType::kInt8:
      return AppendInteger<int8_t>(value, tensor);
    case DataType::kInt16:
      return AppendInteger<int16_t>(value, tensor);
    case DataType::kInt32:
      return AppendInteger<int32_t>(value, tensor);
    case DataType::kInt64:
      return AppendInteger<int64_t>(value, tensor);
    case DataType::kFp32:
      return AppendFloat<float>(value, tensor);
    case DataType::kFp64:
      return AppendFloat<double>(value, tensor);
    case DataType::kFp16:
    case DataType::kBf16:
      return Unparsable(tensor, fmt::format("{} has no JSON form; send the tensor as binary data",
                                            DataTypeName(tensor.type)));
  }
  return {};
}

void WriteElements(const Tensor& tensor, JsonWriter& writer) {
  switch (tensor.type) {
    case DataType::kBytes:
      for (const std::string_view text : Strings(tensor)) writer.String(text);
      return;
    case DataType::kBool:
      for (const bool value : Bools(tensor)) writer.Bool(value);
      return;
    case DataType::kUint64:
      for (const int64_t value : Integers(tensor)) writer.Uint(static_cast<uint64_t>(value));
      return;
    case DataType::kFp64:
      for (size_t at = 0; at < tensor.data.size(); at += sizeof(double)) {
        writer.Double(LoadLittleEndian<double>(tensor.data.data() + at));
      }
      return;
    case DataType::kFp16:
    case DataType::kBf16:
    case DataType::kFp32:
      for (const float value : Floats(tensor)) writer.Float(value);
      return;
    default:
      for (const int64_t value : Integers(tensor)) writer.Int(value);
  }
}

Status ReadParameter(std::string_view name, const Json& value, Parameters& parameters) {
  Parameter parameter;
  if (const std::string* text = value.AsString()) {
    parameter = *text;
  } else if (const bool* truth = value.AsBool()) {
    parameter = *truth;
  } else if (const int64_t* number = value.AsInt()) {
    parameter = *number;
  } else if (const uint64_t* large = value.AsUint()) {
    parameter = *large;
  } else if (const double* real = value.AsDouble()) {
    parameter = *real;
  } else {
    return InvalidArgument(fmt::format("parameter '{}' has invalid type. It should be either "
                                       "'int', 'bool', or 'string'.",
                                       name))
        .WithField(name);
  }
  parameters.insert_or_assign(std::string(name), std::move(parameter));
  return {};
}

Result<Parameters> ReadParameters(const Json& object) {
  Parameters parameters;
  for (const JsonMember& member : *object.AsObject()) {
    TANDEM_RETURN_IF_ERROR(ReadParameter(member.name, member.value, parameters));
  }
  return parameters;
}

Result<Parameters> ParametersOf(const Json& object) {
  const Json* parameters = object.Find("parameters");
  if (parameters == nullptr) return Parameters();
  if (parameters->AsObject() != nullptr) return ReadParameters(*parameters);
  return InvalidArgument("Expected 'parameters' to be an object").WithField("parameters");
}

void WriteParameter(const Parameter& value, JsonWriter& writer) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    writer.String(*text);
  } else if (const auto* truth = std::get_if<bool>(&value)) {
    writer.Bool(*truth);
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    writer.Int(*number);
  } else if (const auto* large = std::get_if<uint64_t>(&value)) {
    writer.Uint(*large);
  } else {
    writer.Double(std::get<double>(value));
  }
}

}  // namespace tandem::serve::kserve
