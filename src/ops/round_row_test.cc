#include "ops/round_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "ops/backend.h"
#include "ops/testing/round_to_fp8.h"

namespace tandem::ops {
namespace {

using Element = QuantScheme::Element;
using testing::ElementsAre;

TEST(ToFloat8, RoundsEveryNumberToTheNearest) {
  std::mt19937 words(3);
  for (int i = 0; i < 200'000; ++i) {
    const float value = std::ldexp(static_cast<float>(words()) * 0x1p-31f - 1.0f,
                                   static_cast<int>(words() % 24) - 14);
    ASSERT_EQ(ToFloat(ToFloat8E4M3(value)), static_cast<float>(RoundToFp8(value))) << value;
  }
  for (int bits = 0; bits < 256; ++bits) {
    if ((bits & 0x7f) == 0x7f) continue;
    ASSERT_EQ(ToFloat8E4M3(ToFloat(Float8E4M3{static_cast<uint8_t>(bits)})).bits, bits);
  }
  EXPECT_TRUE(std::isnan(ToFloat(ToFloat8E4M3(NAN))));
  EXPECT_EQ(ToFloat(ToFloat8E4M3(-INFINITY)), -448.0f);
}

TEST(RoundRow, MapsTheLargestOfEachBlockToTheLargestElement) {
  const std::vector<float> row = {7, -3.4f, 0.4f, -7, 0, 0, 0, 0, 1, 2, 3.5f};
  std::vector<uint8_t> bytes(6);
  std::vector<float> scales(3);
  RoundRow({Element::kInt4, 1, 4}, row, {}, bytes.data(), scales.data());
  EXPECT_THAT(scales, ElementsAre(1.0f, 1.0f, 0.5f));
  EXPECT_THAT(bytes, ElementsAre(0x5f, 0x18, 0x88, 0x88, 0xca, 0x0f));
}

TEST(RoundRow, ABlockThatIsNotFiniteHasNaNForItsScale) {
  for (const Element element : {Element::kInt4, Element::kInt8, Element::kFp8E4M3}) {
    for (const float odd : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> row(64, 0.5f);
      row[35] = odd;
      std::vector<uint8_t> bytes(64);
      std::vector<float> scales(2);
      RoundRow({element, 1, 32}, row, {}, bytes.data(), scales.data());
      EXPECT_FALSE(std::isnan(scales[0]));
      EXPECT_TRUE(std::isnan(scales[1]));
    }
  }
}

// Elements and scales mean, to WidenRow, what RoundedRow says; no other element is nearer.
TEST(RoundRow, GivesTheNearestValues) {
  std::mt19937 words(5);
  std::normal_distribution<float> normal;
  std::vector<float> row(96);
  for (float& value : row) value = normal(words);
  for (const QuantScheme& scheme :
       {QuantScheme{Element::kInt4, 1, 32}, QuantScheme{Element::kInt8, 1, 0},
        QuantScheme{Element::kInt8, 1, 16}, QuantScheme{Element::kFp8E4M3, 1, 0}}) {
    for (const float share : {1.0f, 0.75f}) {
      const auto blocks = static_cast<size_t>(scheme.column_blocks(96));
      const std::vector<float> clip(blocks, share);
      std::vector<uint8_t> bytes(96);
      std::vector<float> scales(blocks), rounded(96), widened(96);
      RoundRow(scheme, row, clip, bytes.data(), scales.data());
      RoundedRow(scheme, row, clip, rounded);
      const WeightFormat format{DType::kF32, scheme};
      const LinearPart part{
          .weight = {bytes.data(), format.element(), {1, format.row_length(96)}, {}},
          .scale = {scales.data(), DType::kF32, {1, static_cast<int64_t>(blocks)}, {}},
          .scheme = scheme};
      WidenRow(part, 0, widened.data());
      EXPECT_EQ(widened, rounded);
      for (size_t i = 0; i < row.size(); ++i) {
        const float scale = scales[i / (96 / blocks)];
        const bool is_fp8 = scheme.element == Element::kFp8E4M3;
        const float half_step =
            is_fp8 ? std::max(std::abs(row[i]) / 16, scale * 0x1p-10f) : scale / 2;
        const float most = (is_fp8 ? 448.0f : scheme.element == Element::kInt8 ? 127.0f : 7.0f);
        if (std::abs(row[i]) > most * scale) continue;  // clipped
        EXPECT_LE(std::abs(rounded[i] - row[i]), half_step * 1.001f) << DescribeScheme(scheme);
      }
    }
  }
}

}  // namespace
}  // namespace tandem::ops
