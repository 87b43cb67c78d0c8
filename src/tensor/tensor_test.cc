#include "tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tensor/buffer.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

TEST(DType, NamesRoundTripInEverySpelling) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kI8,
                            DType::kU8, DType::kI32, DType::kI64}) {
    EXPECT_EQ(ParseDType(DTypeName(dtype)), dtype);
    EXPECT_EQ(ParseDType("torch." + std::string(DTypeName(dtype))), dtype);
    EXPECT_EQ(ParseSafetensorsDType(SafetensorsName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("bf16"), DType::kBF16);
  EXPECT_EQ(ParseDType("half"), DType::kF16);
  EXPECT_EQ(ParseDType("auto"), std::nullopt);
  EXPECT_EQ(ParseSafetensorsDType("F64"), std::nullopt);
}

TEST(Float16, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const float value = ToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(ToFloat(ToFloat16(value))));
    } else {
      ASSERT_EQ(ToFloat16(value).bits, bits) << value;
    }
  }
}

TEST(Float16, RoundsToNearestEven) {
  // Between two neighbours: below the midpoint down, above it up, the midpoint itself to even.
  for (uint16_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = ToFloat(Float16{bits});
    const double high = ToFloat(Float16{static_cast<uint16_t>(bits + 1)});
    const auto middle = static_cast<float>((low + high) / 2);
    const uint16_t even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(ToFloat16(middle).bits, even);
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 0.0f)).bits, bits);
    ASSERT_EQ(ToFloat16(std::nextafter(middle, 1e9f)).bits, bits + 1);
  }
  EXPECT_EQ(ToFloat16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(ToFloat16(-1e30f).bits, 0xfc00);
}

TEST(BFloat16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(ToBFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(ToBFloat16(1.00390625f).bits, 0x3f80);  // the midpoint, to the even neighbour
  EXPECT_EQ(ToBFloat16(1.01171875f).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(ToFloat(ToBFloat16(std::numeric_limits<float>::quiet_NaN()))));
}

// Every value from its definition: 1 sign, 4 exponent (bias 7) and 3 mantissa bits, one NaN.
TEST(Float8E4M3, HasTheValuesOfItsBits) {
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float value = ToFloat(Float8E4M3{static_cast<uint8_t>(bits)});
    if (exponent == 15 && mantissa == 7) {
      EXPECT_TRUE(std::isnan(value));
      continue;
    }
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    EXPECT_EQ(value, (bits & 0x80) != 0 ? -magnitude : magnitude) << bits;
  }
  EXPECT_EQ(ToFloat(Float8E4M3{0x7e}), 448.0f);
}

TEST(Buffer, IsZeroedAndAlignedWhateverItsSize) {
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const Buffer buffer = Buffer::OnHost(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    EXPECT_EQ(buffer.As<char>()[0], 0);
    EXPECT_EQ(buffer.As<char>()[bytes - 1], 0);
  }
}

TEST(Buffer, IsEmptyWhenThereIsNotThatMuchMemory) {
  EXPECT_EQ(Buffer::OnHost(size_t{1} << 60).data(), nullptr);
  EXPECT_EQ(Buffer::OnHost(0).data(), nullptr);
}

TEST(Buffer, MovesItsMemory) {
  Buffer first = Buffer::OnHost(64);
  void* const data = first.data();
  Buffer second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT(bugprone-use-after-move): a moved-from one is empty
}

TEST(Tensor, RowRangeIsAViewOfTheRows) {
  const Buffer buffer = Buffer::OnHost(6 * sizeof(float));
  for (int i = 0; i < 6; ++i) buffer.As<float>()[i] = static_cast<float>(i);
  const Tensor all = buffer.View(DType::kF32, {3, 2});
  const Tensor last = all.RowRange(1, 2);
  EXPECT_EQ(last.shape, (Shape{2, 2}));
  EXPECT_EQ(last.As<float>()[0], 2.0f);
  EXPECT_EQ(all.Rows(1).NumElements(), 2);
  EXPECT_EQ(all.shape.ToString(), "[3, 2]");
}

TEST(Convert, ConvertsFromMisalignedMemory) {
  alignas(8) std::byte raw[9] = {};
  const float values[2] = {1.5f, -2.0f};
  std::memcpy(raw + 1, values, sizeof(values));
  const Buffer out = Buffer::OnHost(4);
  const Tensor to = out.View(DType::kBF16, {2});
  ConvertElements({raw + 1, DType::kF32, {2}, Device{}}, to);
  EXPECT_EQ(ToFloat(to.As<BFloat16>()[0]), 1.5f);
  EXPECT_EQ(ToFloat(to.As<BFloat16>()[1]), -2.0f);
}

TEST(Convert, CountsNanAndInfinity) {
  uint8_t fp8[] = {0x7f, 0xff, 0x7e, 0x00};
  EXPECT_EQ(CountNonFinite({fp8, DType::kF8E4M3, {4}, Device{}}), 2);
  float values[4] = {1.0f, std::numeric_limits<float>::quiet_NaN(),
                     -std::numeric_limits<float>::infinity(), 0.0f};
  EXPECT_EQ(CountNonFinite({values, DType::kF32, {4}, Device{}}), 2);
  EXPECT_EQ(CountNonFinite({values, DType::kI32, {4}, Device{}}), 0);
}

}  // namespace
}  // namespace tandem
