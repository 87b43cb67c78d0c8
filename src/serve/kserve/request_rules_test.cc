#include "serve/kserve/request_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::serve::kserve {
namespace {

using testing::HasSubstr;

TEST(RequestRules, NamesThatTheProtocolReservesAreRefusedByName) {
  EXPECT_TRUE(CheckParameters({}).ok());
  EXPECT_TRUE(CheckParameters({{"triton", true}, {"tritonx", true}, {"u", true}}).ok());
  const Status refusal = CheckParameters({{"a", true}, {"triton_x", int64_t{1}}});
  EXPECT_EQ(refusal.code(), Code::kInvalidArgument);
  EXPECT_EQ(refusal.field(), "triton_x");
  EXPECT_THAT(refusal.message(), HasSubstr("'triton_x'"));
}

TEST(RequestRules, ATensorsReservedNamesAreRefusedToo) {
  EXPECT_EQ(CheckTensorParameters("x", {{"triton_x", true}}).status().field(), "triton_x");
}

TEST(RequestRules, ClassificationIsRefusedWhateverItsValue) {
  for (const int64_t classes : {0, 3}) {
    const Status refusal = CheckTensorParameters("y", {{"classification", classes}}).status();
    EXPECT_EQ(refusal.code(), Code::kUnimplemented);
    EXPECT_EQ(refusal.field(), "y");
    EXPECT_THAT(refusal.message(), HasSubstr("'classification'"));
  }
}

TEST(RequestRules, ATensorsParametersMayNameSharedMemory) {
  const auto none = CheckTensorParameters("x", {{"content_type", std::string("str")}});
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  const auto range = CheckTensorParameters(
      "x", {{"shared_memory_region", std::string("r")}, {"shared_memory_byte_size", int64_t{4}}});
  ASSERT_TRUE(range.ok());
  EXPECT_EQ((*range)->region, "r");
  EXPECT_EQ(CheckTensorParameters("x", {{"shared_memory_region", true}}).status().field(), "x");
}

}  // namespace
}  // namespace tandem::serve::kserve
