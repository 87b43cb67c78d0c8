#include "apps/cli/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr OptionSpec kSpecs[] = {
    {.name = "model", .alias = "engine_dir", .position = Position::kOptional},
    {.name = "draft", .position = Position::kOptional},
    {.name = "api_key"},
    {.name = "port", .type = OptionType::kInt, .min = -1, .max = 65535},
    {.name = "no_draft", .type = OptionType::kFlag},
    {.name = "gemm_plugin", .type = OptionType::kOptionalText},
    {.name = "input_text", .type = OptionType::kTexts, .alias = "-i"},
};

class ReadArgumentsTest : public ::testing::Test {
 protected:
  Status Read(const std::vector<std::string_view>& words) { return ReadArguments(words, values_); }
  std::string Refusal(const std::vector<std::string_view>& words) {
    const Status status = Read(words);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  }
  OptionValues values_{kSpecs};
};

TEST_F(ReadArgumentsTest, FillsPositionsAndNamesInAnyOrder) {
  ASSERT_TRUE(Read({"TARGET", "--port", "80", "DRAFT", "--api-key=k=1"}).ok());
  EXPECT_EQ(values_.Text(*values_.Find("model")), "TARGET");
  EXPECT_EQ(values_.Text(*values_.Find("draft")), "DRAFT");
  EXPECT_EQ(values_.Int(*values_.Find("port")), 80);
  EXPECT_EQ(values_.Text(*values_.Find("api_key")), "k=1");
}

TEST_F(ReadArgumentsTest, APositionGoesToWhatWasNotNamed) {
  ASSERT_TRUE(Read({"--engine_dir", "TARGET", "DRAFT"}).ok());
  EXPECT_EQ(values_.Text(*values_.Find("model")), "TARGET");
  EXPECT_EQ(values_.Text(*values_.Find("draft")), "DRAFT");
}

TEST_F(ReadArgumentsTest, AFlagTakesATruthWordAndNothingElse) {
  ASSERT_TRUE(Read({"--no_draft", "TARGET"}).ok());
  EXPECT_TRUE(values_.Flag(*values_.Find("no_draft")));
  EXPECT_EQ(values_.Text(*values_.Find("model")), "TARGET");
  ASSERT_TRUE(Read({"--no_draft", "disable"}).ok());
  EXPECT_FALSE(values_.Flag(*values_.Find("no_draft")));
  ASSERT_TRUE(Read({"--no_draft=on"}).ok());
  EXPECT_TRUE(values_.Flag(*values_.Find("no_draft")));
  EXPECT_THAT(Refusal({"--no_draft=maybe"}), HasSubstr("--no_draft: 'maybe' is neither true nor"));
}

TEST_F(ReadArgumentsTest, NoOptionSwallowsTheNextOne) {
  ASSERT_TRUE(Read({"--gemm_plugin", "--api_key", "k"}).ok());
  EXPECT_EQ(values_.Text(*values_.Find("gemm_plugin")), "true");
  EXPECT_EQ(values_.Text(*values_.Find("api_key")), "k");
  EXPECT_EQ(Refusal({"--api_key", "--no_draft"}),
            "--api_key: its value is missing, --no_draft is an option (if it is the value, write "
            "--api_key=--no_draft)");
  EXPECT_EQ(Refusal({"--input_text", "--no_draft"}),
            "--input_text: its value is missing, --no_draft is an option (if it is the value, "
            "write --input_text=--no_draft)");
  EXPECT_EQ(Refusal({"--port"}), "--port: its value is missing");
}

TEST_F(ReadArgumentsTest, AnEmptyValueIsRefusedByTheNameThatWasTyped) {
  EXPECT_THAT(Refusal({"--api_key=", "--no_draft"}), HasSubstr("--api_key: the value is empty"));
  EXPECT_THAT(Refusal({"--engine-dir", ""}), HasSubstr("--engine-dir: the value is empty"));
  EXPECT_THAT(Refusal({""}), HasSubstr("MODEL: the value is empty"));
  EXPECT_THAT(Refusal({"TARGET", ""}), HasSubstr("DRAFT: the value is empty"));
  EXPECT_FALSE(values_.IsSet(*values_.Find("api_key")));
  EXPECT_FALSE(values_.IsSet(*values_.Find("draft")));
}

TEST_F(ReadArgumentsTest, SeveralValuesCollectAndTheLastOfOthersWins) {
  ASSERT_TRUE(Read({"--input_text", "a", "b", "--port=1", "-i", "c", "--port=2"}).ok());
  EXPECT_THAT(values_.Texts(*values_.Find("input_text")), ElementsAre("a", "b", "c"));
  EXPECT_EQ(values_.Int(*values_.Find("port")), 2);
}

TEST_F(ReadArgumentsTest, TextMayBeginWithADash) {
  ASSERT_TRUE(Read({"--input_text", "- a list", "--with spaces", "-5", "--port", "-1"}).ok());
  EXPECT_THAT(values_.Texts(*values_.Find("input_text")),
              ElementsAre("- a list", "--with spaces", "-5"));
  EXPECT_EQ(values_.Int(*values_.Find("port")), -1);
  ASSERT_TRUE(Read({"--api_key=--x", "--", "--model-with-dashes"}).ok());
  EXPECT_EQ(values_.Text(*values_.Find("api_key")), "--x");
  EXPECT_EQ(values_.Text(*values_.Find("model")), "--model-with-dashes");
}

TEST_F(ReadArgumentsTest, UnknownNamesGetASuggestion) {
  EXPECT_EQ(Refusal({"--no-drat"}), "--no-drat: there is no such option; did you mean --no_draft?");
  EXPECT_EQ(Refusal({"--endine_dir=x"}),
            "--endine_dir: there is no such option; did you mean --engine_dir?");
  EXPECT_EQ(Refusal({"-x"}), "-x: there is no such option; did you mean -i?");
  EXPECT_EQ(Refusal({"a", "b", "c"}), "'c' is one word too many; an option begins with --");
}

TEST(AsksForHelpTest, AnywhereAmongTheOptions) {
  const std::vector<std::string_view> asks = {"TARGET", "--help"};
  const std::vector<std::string_view> text = {"--input_text", "x", "--", "--help"};
  EXPECT_TRUE(AsksForHelp(asks));
  EXPECT_FALSE(AsksForHelp(text));
}

}  // namespace
}  // namespace tandem::apps
