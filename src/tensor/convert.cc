#include "tensor/convert.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/vector_clones.h"

namespace tandem {
namespace {

// A mapped file promises no alignment: go through memcpy, which compiles to a plain load.
template <typename T>
T LoadAt(const void* data, int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(data) + i * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

float AsFloat(float value) { return value; }
float AsFloat(BFloat16 value) { return ToFloat(value); }
float AsFloat(Float16 value) { return ToFloat(value); }
float AsFloat(Float8E4M3 value) { return ToFloat(value); }

template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(value);
  } else {
    return value;
  }
}

using WordX16 = uint32_t __attribute__((vector_size(64)));
using HalfX16 = uint16_t __attribute__((vector_size(32)));

// ToFloat(BFloat16) and ToBFloat16 of many; pointers of any alignment.
TANDEM_VECTOR_CLONES
void WidenBFloat16(const std::byte* from, int64_t count, std::byte* to) {
  for (; count >= 16; count -= 16, from += sizeof(HalfX16), to += sizeof(WordX16)) {
    HalfX16 half;
    __builtin_memcpy(&half, from, sizeof(half));
    const WordX16 word = __builtin_convertvector(half, WordX16) << 16;
    __builtin_memcpy(to, &word, sizeof(word));
  }
  for (; count > 0; --count, from += sizeof(uint16_t), to += sizeof(uint32_t)) {
    uint16_t half;
    __builtin_memcpy(&half, from, sizeof(half));
    const uint32_t word = static_cast<uint32_t>(half) << 16;
    __builtin_memcpy(to, &word, sizeof(word));
  }
}

TANDEM_VECTOR_CLONES
void RoundToBFloat16(const std::byte* from, int64_t count, std::byte* to) {
  for (; count >= 16; count -= 16, from += sizeof(WordX16), to += sizeof(HalfX16)) {
    WordX16 word;
    __builtin_memcpy(&word, from, sizeof(word));
    const auto is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const WordX16 rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const HalfX16 half = __builtin_convertvector(is_nan ? word >> 16 | 0x40u : rounded, HalfX16);
    __builtin_memcpy(to, &half, sizeof(half));
  }
  for (; count > 0; --count, from += sizeof(uint32_t), to += sizeof(uint16_t)) {
    uint32_t word;
    __builtin_memcpy(&word, from, sizeof(word));
    const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
    const auto half = static_cast<uint16_t>(is_nan ? word >> 16 | 0x40u
                                                   : (word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
    __builtin_memcpy(to, &half, sizeof(half));
  }
}

// Calls fn with a value of the C++ type for `dtype`.
template <typename Fn>
auto DispatchFloat(DType dtype, Fn&& fn) {
  if (dtype == DType::kBF16) return fn(BFloat16{});
  if (dtype == DType::kF16) return fn(Float16{});
  TANDEM_CHECK(dtype == DType::kF32, DTypeName(dtype));
  return fn(float{});
}

// The same for a type that is only read.
template <typename Fn>
auto DispatchSource(DType dtype, Fn&& fn) {
  return dtype == DType::kF8E4M3 ? fn(Float8E4M3{}) : DispatchFloat(dtype, fn);
}

}  // namespace

void ConvertElements(const Tensor& from, const Tensor& to) {
  const int64_t count = from.NumElements();
  TANDEM_CHECK(count == to.NumElements(), "as many elements out as in");
  if (from.dtype == to.dtype) {
    std::memcpy(to.data, from.data, static_cast<size_t>(from.NumBytes()));
    return;
  }
  const auto* from_bytes = static_cast<const std::byte*>(from.data);
  auto* to_bytes = static_cast<std::byte*>(to.data);
  if (from.dtype == DType::kBF16 && to.dtype == DType::kF32) {
    WidenBFloat16(from_bytes, count, to_bytes);
    return;
  }
  if (from.dtype == DType::kF32 && to.dtype == DType::kBF16) {
    RoundToBFloat16(from_bytes, count, to_bytes);
    return;
  }
  DispatchSource(from.dtype, [&](auto source) {
    using Source = decltype(source);
    DispatchFloat(to.dtype, [&](auto target) {
      using Target = decltype(target);
      auto* out = to.As<Target>();
      for (int64_t i = 0; i < count; ++i) {
        out[i] = FromFloat<Target>(AsFloat(LoadAt<Source>(from.data, i)));
      }
    });
  });
}

void ScaleElements(const Tensor& from, double factor, const Tensor& to) {
  TANDEM_CHECK(from.dtype == to.dtype && from.NumElements() == to.NumElements(),
               "as many elements out as in");
  DispatchFloat(from.dtype, [&](auto element) {
    using Element = decltype(element);
    const float by = AsFloat(FromFloat<Element>(static_cast<float>(factor)));
    for (int64_t i = 0; i < from.NumElements(); ++i) {
      to.As<Element>()[i] = FromFloat<Element>(AsFloat(LoadAt<Element>(from.data, i)) * by);
    }
  });
}

int64_t CountNonFinite(const Tensor& tensor) {
  if (!IsFloat(tensor.dtype) && tensor.dtype != DType::kF8E4M3) return 0;
  return DispatchSource(tensor.dtype, [&](auto element) {
    using Element = decltype(element);
    int64_t found = 0;
    for (int64_t i = 0; i < tensor.NumElements(); ++i) {
      found += std::isfinite(AsFloat(LoadAt<Element>(tensor.data, i))) ? 0 : 1;
    }
    return found;
  });
}

void CopyColumns(const Tensor& from, int64_t from_begin, const Tensor& to, int64_t to_begin,
                 int64_t count) {
  const auto element = static_cast<int64_t>(SizeOf(from.dtype));
  const auto* const source = static_cast<const std::byte*>(from.data) + from_begin * element;
  auto* const target = static_cast<std::byte*>(to.data) + to_begin * element;
  for (int64_t row = 0; row < from.dim(0); ++row) {
    std::memcpy(target + row * to.dim(1) * element, source + row * from.dim(1) * element,
                static_cast<size_t>(count * element));
  }
}

}  // namespace tandem
