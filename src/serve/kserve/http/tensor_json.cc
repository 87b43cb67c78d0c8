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
  return VisitType(tensor.type, [&]<typename T>(std::type_identity<T>) -> Status {
    if constexpr (std::is_same_v<T, std::string_view>) {
      if (value.AsString() == nullptr) return WrongKind(tensor, "non-string", "string");
      AppendString(*value.AsString(), tensor.data);
      return {};
    } else if constexpr (std::is_same_v<T, bool>) {
      if (value.AsBool() == nullptr) return WrongKind(tensor, "non-boolean", "boolean");
      tensor.data += *value.AsBool() ? '\1' : '\0';
      return {};
    } else if constexpr (kIsInteger<T>) {
      return AppendInteger<T>(value, tensor);
    } else if constexpr (std::is_floating_point_v<T>) {
      return AppendFloat<T>(value, tensor);
    } else {
      return Unparsable(tensor, fmt::format("{} has no JSON form; send the tensor as binary data",
                                            DataTypeName(tensor.type)));
    }
  });
}

void WriteElements(const Tensor& tensor, JsonWriter& writer) {
  VisitType(tensor.type, [&]<typename T>(std::type_identity<T>) {
    if constexpr (std::is_same_v<T, std::string_view>) {
      for (const std::string_view text : Strings(tensor)) writer.String(text);
    } else if constexpr (std::is_same_v<T, bool>) {
      for (const bool value : Bools(tensor)) writer.Bool(value);
    } else if constexpr (std::is_same_v<T, uint64_t>) {
      for (const int64_t value : Integers(tensor)) writer.Uint(static_cast<uint64_t>(value));
    } else if constexpr (kIsInteger<T>) {
      for (const int64_t value : Integers(tensor)) writer.Int(value);
    } else if constexpr (std::is_same_v<T, double>) {
      for (size_t at = 0; at < tensor.data.size(); at += sizeof(double)) {
        writer.Double(LoadLittleEndian<double>(tensor.data.data() + at));
      }
    } else {
      for (const float value : Floats(tensor)) writer.Float(value);
    }
  });
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
