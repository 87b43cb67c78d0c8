// Tensors of the inference protocol as values: name, type, shape and the elements' bytes in the
// form that both of its transports carry. Plain values and pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace tandem::serve::kserve {

// In the order of the configuration's types.
enum class DataType : uint8_t {
  kBool,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFp16,
  kFp32,
  kFp64,
  kBytes,
  kBf16,
};
// "INT32"; strings are "BYTES".
std::string_view DataTypeName(DataType type);
std::optional<DataType> DataTypeNamed(std::string_view name);
// Bytes of an element; 0 for kBytes, whose elements differ.
size_t ElementBytes(DataType type);

// The bits of floats that C++ has no type for.
struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// Calls `visit` with the std::type_identity of the elements' type in C++, std::string_view for
// kBytes, and returns what it returns.
template <typename Visit>
auto VisitType(DataType type, Visit&& visit) {
  switch (type) {
    case DataType::kBool:
      return visit(std::type_identity<bool>());
    case DataType::kUint8:
      return visit(std::type_identity<uint8_t>());
    case DataType::kUint16:
      return visit(std::type_identity<uint16_t>());
    case DataType::kUint32:
      return visit(std::type_identity<uint32_t>());
    case DataType::kUint64:
      return visit(std::type_identity<uint64_t>());
    case DataType::kInt8:
      return visit(std::type_identity<int8_t>());
    case DataType::kInt16:
      return visit(std::type_identity<int16_t>());
    case DataType::kInt32:
      return visit(std::type_identity<int32_t>());
    case DataType::kInt64:
      return visit(std::type_identity<int64_t>());
    case DataType::kFp16:
      return visit(std::type_identity<Half>());
    case DataType::kFp32:
      return visit(std::type_identity<float>());
    case DataType::kFp64:
      return visit(std::type_identity<double>());
    case DataType::kBf16:
      return visit(std::type_identity<Bf16>());
    case DataType::kBytes:
      break;
  }
  return visit(std::type_identity<std::string_view>());
}

// Of the types that VisitType gives.
template <typename T>
inline constexpr bool kIsInteger = std::is_integral_v<T> && !std::is_same_v<T, bool>;

struct Tensor {
  std::string name;
  DataType type = DataType::kBytes;
  std::vector<int64_t> shape;
  // Little-endian elements, rows first. An element of kBytes is its length in 4 bytes, then itself.
  std::string data;
};

// The number of elements of a shape. INVALID_ARGUMENT for a negative dimension, and for more
// elements than any request can hold.
Result<int64_t> NumElements(std::span<const int64_t> shape);
// INVALID_ARGUMENT, with the tensor's name as field, unless `data` holds exactly the elements of
// `shape`.
Status CheckData(const Tensor& tensor);

// The elements of a checked tensor. Strings are views of its data.
std::vector<std::string_view> Strings(const Tensor& tensor);
// Elements of any integer type (not kBool) or of any floating one; the result is empty for others.
std::vector<int64_t> Integers(const Tensor& tensor);
std::vector<float> Floats(const Tensor& tensor);
std::vector<bool> Bools(const Tensor& tensor);

// A matrix from rows of different lengths: the length of the longest, and each row with the padding
// after it.
template <typename T>
size_t LongestOf(const std::vector<std::vector<T>>& rows) {
  size_t longest = 0;
  for (const std::vector<T>& row : rows) longest = std::max(longest, row.size());
  return longest;
}
template <typename T>
void AppendPadded(const std::vector<T>& row, size_t width, T padding, std::vector<T>& matrix) {
  matrix.insert(matrix.end(), row.begin(), row.end());
  matrix.resize(matrix.size() + width - row.size(), padding);
}

void AppendString(std::string_view element, std::string& data);
Tensor StringTensor(std::string name, std::vector<int64_t> shape,
                    std::span<const std::string> elements);
Tensor Int32Tensor(std::string name, std::vector<int64_t> shape, std::span<const int32_t> elements);
Tensor Int64Tensor(std::string name, std::vector<int64_t> shape, std::span<const int64_t> elements);
Tensor FloatTensor(std::string name, std::vector<int64_t> shape, std::span<const float> elements);

}  // namespace tandem::serve::kserve
