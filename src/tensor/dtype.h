// Element types of tensors: their names in files, sizes and scalar conversions. Pure values.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem {

enum class DType : uint8_t { kF32, kF16, kBF16, kF8E4M3, kI8, kU8, kI32, kI64 };

constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
      return 1;
  }
  return 0;
}

// "bfloat16", as in config.json and on our command line.
std::string_view DTypeName(DType dtype);
// Accepts the spellings of config.json ("bfloat16", "torch.bfloat16") and of the command line
// ("bf16").
std::optional<DType> ParseDType(std::string_view name);
// "BF16", as in safetensors headers.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> ParseSafetensorsDType(std::string_view name);

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};
struct Float8E4M3 {
  uint8_t bits;
};

inline float ToFloat(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}
// Round to nearest, ties to even; a NaN stays a NaN.
inline BFloat16 ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
float ToFloat(Float16 value);
Float16 ToFloat16(float value);  // round to nearest even, overflow to infinity
float ToFloat(Float8E4M3 value);
Float8E4M3 ToFloat8E4M3(float value);  // round to nearest even, overflow to the largest

}  // namespace tandem
