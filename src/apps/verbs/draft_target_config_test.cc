#include "apps/verbs/draft_target_config.h"

#include <gtest/gtest.h>

namespace tandem::apps {
namespace {

TEST(DraftTargetConfigTest, ReadsTheFormOfRunPy) {
  const auto config = ParseDraftTargetConfig("[4,[0],[1],False]");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->draft_len, 4);
  EXPECT_EQ(config->draft_devices, std::vector<int>{0});
  EXPECT_EQ(config->target_devices, std::vector<int>{1});
  EXPECT_FALSE(config->use_logits);
}

TEST(DraftTargetConfigTest, ReadsSeveralDevicesAndSpaces) {
  const auto config = ParseDraftTargetConfig(" [10, [0, 1], [2,3,4,5], True ] ");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->target_devices.size(), 4u);
  EXPECT_TRUE(config->use_logits);
}

TEST(DraftTargetConfigTest, RefusesAnythingElseShowingTheForm) {
  for (const char* text :
       {"", "4", "[4,[0],[1]]", "[0,[0],[1],False]", "[65,[0],[1],False]", "[4,[],[1],False]",
        "[4,[0],[1],False]x", "[-1,[0],[1],False]", "[4,[0],[1],Maybe]"}) {
    const auto config = ParseDraftTargetConfig(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_NE(config.status().message().find("[4,[0],[1],False]"), std::string::npos);
  }
}

}  // namespace
}  // namespace tandem::apps
