#include "tensor/dtype.h"

#include <algorithm>
#include <array>

namespace tandem {
namespace {

struct DTypeNames {
  DType dtype;
  std::string_view name;         // config.json
  std::string_view short_name;   // command line
  std::string_view safetensors;  // safetensors header
};

constexpr std::array kDTypes = {
    DTypeNames{DType::kF32, "float32", "fp32", "F32"},
    DTypeNames{DType::kF16, "float16", "fp16", "F16"},
    DTypeNames{DType::kBF16, "bfloat16", "bf16", "BF16"},
    DTypeNames{DType::kF8E4M3, "float8_e4m3fn", "fp8", "F8_E4M3"},
    DTypeNames{DType::kI8, "int8", "i8", "I8"},
    DTypeNames{DType::kU8, "uint8", "u8", "U8"},
    DTypeNames{DType::kI32, "int32", "i32", "I32"},
    DTypeNames{DType::kI64, "int64", "i64", "I64"},
};

const DTypeNames& NamesOf(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

constexpr bool InEnumOrder() {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (static_cast<size_t>(kDTypes[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InEnumOrder(), "kDTypes is indexed by the enum");

}  // namespace

std::string_view DTypeName(DType dtype) { return NamesOf(dtype).name; }

std::optional<DType> ParseDType(std::string_view name) {
  constexpr std::string_view kTorch = "torch.";
  if (name.starts_with(kTorch)) name.remove_prefix(kTorch.size());
  if (name == "half") return DType::kF16;
  if (name == "float") return DType::kF32;
  for (const DTypeNames& names : kDTypes) {
    if (name == names.name || name == names.short_name) return names.dtype;
  }
  return std::nullopt;
}

std::string_view SafetensorsName(DType dtype) { return NamesOf(dtype).safetensors; }

std::optional<DType> ParseSafetensorsDType(std::string_view name) {
  for (const DTypeNames& names : kDTypes) {
    if (name == names.safetensors) return names.dtype;
  }
  return std::nullopt;
}

float ToFloat(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fu;
  const uint32_t mantissa = value.bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

Float16 ToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const auto with_sign = [sign](uint32_t half) {
    return Float16{static_cast<uint16_t>(sign | half)};
  };
  if (magnitude > 0x7f800000u) return with_sign(0x7e00u);   // NaN
  if (magnitude >= 0x47800000u) return with_sign(0x7c00u);  // 65536 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14 a half counts in steps of 2^-24: let the float addition round to that step.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f));
  }
  // A carry out of the mantissa increases the exponent, and takes values from 65504 to infinity, as
  // it should.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return with_sign((rounded - 0x38000000u) >> 13);
}

// No infinities: the highest exponent also holds numbers, up to 448, and one NaN.
float ToFloat(Float8E4M3 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x80u) << 24;
  const uint32_t exponent = (value.bits >> 3) & 0xfu;
  const uint32_t mantissa = value.bits & 0x7u;
  if (exponent == 0xf && mantissa == 0x7) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -9);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 120u) << 23) | (mantissa << 20));
}

Float8E4M3 ToFloat8E4M3(float value) {
  constexpr uint32_t kLargest = 0x7e;  // 448
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const float magnitude = std::abs(value);
  if (std::isnan(value)) return {static_cast<uint8_t>(sign | 0x7fu)};
  if (magnitude >= 448.0f) return {static_cast<uint8_t>(sign | kLargest)};
  if (magnitude < 0x1p-6f) {  // steps of 2^-9 up to the smallest normal number
    return {static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)))};
  }
  const uint32_t rest = bits & 0x7fffffffu;
  const uint32_t rounded = rest + 0x7ffffu + ((rest >> 20) & 1u);
  return {static_cast<uint8_t>(sign | std::min(((rounded >> 20) - (120u << 3)), kLargest))};
}

}  // namespace tandem
