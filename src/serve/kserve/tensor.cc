#include "serve/kserve/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/little_endian.h"

namespace tandem::serve::kserve {
namespace {

struct TypeRow {
  std::string_view name;
  size_t bytes;
};
// In the order of DataType.
constexpr TypeRow kTypes[] = {{"BOOL", 1},   {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4},
                              {"UINT64", 8}, {"INT8", 1},  {"INT16", 2},  {"INT32", 4},
                              {"INT64", 8},  {"FP16", 2},  {"FP32", 4},   {"FP64", 8},
                              {"BYTES", 0},  {"BF16", 2}};

constexpr size_t kLengthBytes = 4;  // before each string

Status TensorError(const Tensor& tensor, std::string_view sentence) {
  return InvalidArgument(fmt::format("input '{}': {}", tensor.name, sentence))
      .WithField(tensor.name);
}

float FloatOfHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  float value = 0.0f;
  if (exponent == 0x1f) {
    value = fraction == 0 ? std::numeric_limits<float>::infinity()
                          : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    value = std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
  }
  return bits >> 15 != 0 ? -value : value;
}

float FloatOfBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// The elements as `T`, each converted by `convert`.
template <typename T, typename Out, typename Convert>
std::vector<Out> Read(const Tensor& tensor, Convert&& convert) {
  std::vector<Out> out(tensor.data.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = convert(LoadLittleEndian<T>(tensor.data.data() + i * sizeof(T)));
  }
  return out;
}

template <typename T>
Tensor MakeTensor(std::string name, DataType type, std::vector<int64_t> shape,
                  std::span<const T> elements) {
  Tensor tensor{std::move(name), type, std::move(shape), {}};
  tensor.data.reserve(elements.size() * sizeof(T));
  for (const T element : elements) AppendLittleEndian(element, tensor.data);
  return tensor;
}

}  // namespace

std::string_view DataTypeName(DataType type) { return kTypes[static_cast<size_t>(type)].name; }

std::optional<DataType> DataTypeNamed(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i].name == name) return static_cast<DataType>(i);
  }
  return std::nullopt;
}

size_t ElementBytes(DataType type) { return kTypes[static_cast<size_t>(type)].bytes; }

Result<int64_t> NumElements(std::span<const int64_t> shape) {
  constexpr int64_t kMost = int64_t{1} << 31;  // as many as the bytes of the largest message
  for (const int64_t dim : shape) {
    if (dim < 0) return InvalidArgument(fmt::format("the shape has a negative dimension, {}", dim));
  }
  // Dimensions beside one of 0 are bounded too: they may count rows without elements.
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim == 0) continue;
    if (dim > kMost / count) return InvalidArgument("the shape has too many elements");
    count *= dim;
  }
  return std::ranges::count(shape, 0) > 0 ? 0 : count;
}

Status CheckData(const Tensor& tensor) {
  const Result<int64_t> count = NumElements(tensor.shape);
  if (!count.ok()) return TensorError(tensor, count.status().message());
  const auto elements = static_cast<size_t>(*count);
  if (tensor.type != DataType::kBytes) {
    const size_t expected = elements * ElementBytes(tensor.type);
    if (tensor.data.size() == expected) return {};
    return TensorError(
        tensor, fmt::format("got {} bytes, expected {} for {} elements of {}", tensor.data.size(),
                            expected, elements, DataTypeName(tensor.type)));
  }
  size_t found = 0;
  for (size_t at = 0; at < tensor.data.size(); ++found) {
    const size_t left = tensor.data.size() - at;
    if (left < kLengthBytes) {
      return TensorError(tensor, fmt::format("the length of string {} is cut off", found));
    }
    const auto length = LoadLittleEndian<uint32_t>(tensor.data.data() + at);
    if (length > left - kLengthBytes) {
      return TensorError(tensor, fmt::format("string {} has {} bytes, but {} follow its length",
                                             found, length, left - kLengthBytes));
    }
    at += kLengthBytes + length;
  }
  if (found == elements) return {};
  return TensorError(tensor, fmt::format("got {} strings, expected {}", found, elements));
}

std::vector<std::string_view> Strings(const Tensor& tensor) {
  std::vector<std::string_view> strings;
  if (tensor.type != DataType::kBytes) return strings;
  std::string_view rest = tensor.data;
  while (!rest.empty()) {
    const auto length = LoadLittleEndian<uint32_t>(rest.data());
    strings.push_back(rest.substr(kLengthBytes, length));
    rest.remove_prefix(kLengthBytes + length);
  }
  return strings;
}

std::vector<int64_t> Integers(const Tensor& tensor) {
  return VisitType(tensor.type, [&]<typename T>(std::type_identity<T>) -> std::vector<int64_t> {
    if constexpr (kIsInteger<T>) {
      return Read<T, int64_t>(tensor, [](T value) { return static_cast<int64_t>(value); });
    }
    return {};
  });
}

std::vector<float> Floats(const Tensor& tensor) {
  return VisitType(tensor.type, [&]<typename T>(std::type_identity<T>) -> std::vector<float> {
    if constexpr (std::is_same_v<T, Half>) return Read<uint16_t, float>(tensor, FloatOfHalf);
    if constexpr (std::is_same_v<T, Bf16>) return Read<uint16_t, float>(tensor, FloatOfBf16);
    if constexpr (std::is_floating_point_v<T>) {
      return Read<T, float>(tensor, [](T value) { return static_cast<float>(value); });
    }
    return {};
  });
}

std::vector<bool> Bools(const Tensor& tensor) {
  if (tensor.type != DataType::kBool) return {};
  return Read<uint8_t, bool>(tensor, [](uint8_t value) { return value != 0; });
}

void AppendString(std::string_view element, std::string& data) {
  TANDEM_CHECK(element.size() <= std::numeric_limits<uint32_t>::max(), "a string above 4 GiB");
  AppendLittleEndian(static_cast<uint32_t>(element.size()), data);
  data += element;
}

Tensor StringTensor(std::string name, std::vector<int64_t> shape,
                    std::span<const std::string> elements) {
  Tensor tensor{std::move(name), DataType::kBytes, std::move(shape), {}};
  for (const std::string& element : elements) AppendString(element, tensor.data);
  return tensor;
}

Tensor Int32Tensor(std::string name, std::vector<int64_t> shape,
                   std::span<const int32_t> elements) {
  return MakeTensor(std::move(name), DataType::kInt32, std::move(shape), elements);
}

Tensor Int64Tensor(std::string name, std::vector<int64_t> shape,
                   std::span<const int64_t> elements) {
  return MakeTensor(std::move(name), DataType::kInt64, std::move(shape), elements);
}

Tensor FloatTensor(std::string name, std::vector<int64_t> shape, std::span<const float> elements) {
  return MakeTensor(std::move(name), DataType::kFp32, std::move(shape), elements);
}

}  // namespace tandem::serve::kserve
