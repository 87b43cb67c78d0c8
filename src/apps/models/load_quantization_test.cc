#include "apps/models/load_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::apps {
namespace {

using Scheme = CalibratedQuantization::Scheme;
using testing::HasSubstr;
using testing::IsEmpty;

OptionValues Values(const std::vector<std::pair<std::string, std::string>>& given) {
  OptionValues values(LoadQuantizationRows().specs());
  for (const auto& [name, value] : given) {
    EXPECT_TRUE(values.Set(name, {value}, "--" + name).ok()) << name;
  }
  return values;
}

std::string Idle(const std::vector<std::pair<std::string, std::string>>& given) {
  const OptionValues values = Values(given);
  testing::internal::CaptureStderr();
  NameIdleQuantization(values, LoadQuantizationRows().Read(values));
  return testing::internal::GetCapturedStderr();
}

TEST(LoadQuantizationTest, WithoutASchemeNothingIsAsked) {
  EXPECT_EQ(LoadQuantizationRows().Read(Values({{"calib_size", "8"}})).Asked(), std::nullopt);
}

TEST(LoadQuantizationTest, OptionsHaveTheNamesAndDefaultsOfLmi) {
  const auto defaults = LoadQuantizationRows().Read(Values({{"quantize", "smoothquant"}})).Asked();
  ASSERT_TRUE(defaults.has_value());
  EXPECT_EQ(*defaults, CalibratedQuantization{.scheme = Scheme::kSmoothQuant});
  const auto asked = LoadQuantizationRows()
                         .Read(Values({{"quantize", "awq"},
                                       {"q_format", "w4a8_awq"},
                                       {"awq_block_size", "64"},
                                       {"awq_calib_size", "512"},
                                       {"calib_batch_size", "4"}}))
                         .Asked();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->scheme, Scheme::kAwq);
  EXPECT_EQ(asked->awq_format, "w4a8_awq");
  EXPECT_EQ(asked->block_size, 64);
  EXPECT_EQ(asked->calib_size, 512);
  EXPECT_EQ(asked->calib_batch_size, 4);
}

TEST(LoadQuantizationTest, OptionsWithoutEffectAreNamedWithTheReason) {
  EXPECT_THAT(Idle({{"quantize", "awq"}, {"awq_block_size", "64"}, {"calib_size", "8"}}),
              IsEmpty());
  EXPECT_THAT(Idle({{"quantize", "awq"}, {"smoothquant_alpha", "0.5"}}),
              HasSubstr("--smoothquant_alpha has no effect without --quantize smoothquant"));
  EXPECT_THAT(Idle({{"quantize", "fp8"}, {"awq_block_size", "64"}}),
              HasSubstr("--awq_block_size has no effect without --quantize awq"));
  EXPECT_THAT(Idle({{"calib_dataset", "texts.txt"}}),
              HasSubstr("--calib_dataset has no effect without --quantize"));
  const std::string smooth = Idle({{"quantize", "smoothquant"},
                                   {"smoothquant_per_token", "true"},
                                   {"smoothquant_per_channel", "false"},
                                   {"multi_query_mode", "true"}});
  EXPECT_THAT(smooth, HasSubstr("--smoothquant_per_channel has no effect: weights always have"));
  EXPECT_THAT(smooth, HasSubstr("--multi_query_mode has no effect: config.json says"));
  EXPECT_THAT(Idle({{"quantize", "smoothquant"}, {"smoothquant_per_channel", "true"}}), IsEmpty());
}

}  // namespace
}  // namespace tandem::apps
