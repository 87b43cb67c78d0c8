#include "apps/verbs/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"

namespace tandem::apps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParseTokenLineTest, TakesIntegersAndNothingElse) {
  EXPECT_THAT(*ParseTokenLine("1,2,300"), ElementsAre(1, 2, 300));
  EXPECT_THAT(*ParseTokenLine(" 1 ,\t2"), ElementsAre(1, 2));
  for (const char* line : {"1.5", "1,2,", ",1", "1 2", "0x10", "-1", "99999999999", "1\r"}) {
    EXPECT_EQ(ParseTokenLine(line).status().code(), Code::kInvalidArgument) << line;
  }
}

class ReadPromptsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tandem_prompts_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<std::vector<Prompt>> Read(const std::string& name, std::string_view text) {
    const std::string path = (folder_ / name).string();
    EXPECT_TRUE(WriteFileAtomically(path, text).ok());
    return ReadPrompts(texts_, path);
  }
  std::vector<std::string> texts_;
  std::filesystem::path folder_;
};

TEST_F(ReadPromptsTest, TextsComeBeforeTheFileAndBlankLinesAreNoPrompts) {
  texts_ = {"one", "two"};
  const auto prompts = Read("more.txt", "three\r\n\r\n  \r\nfour, five\r\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  std::vector<std::string> shown;
  for (const Prompt& prompt : *prompts) {
    shown.push_back(prompt.shown);
    EXPECT_TRUE(prompt.tokens.empty());
  }
  EXPECT_THAT(shown, ElementsAre("one", "two", "three", "four, five"));
}

TEST_F(ReadPromptsTest, LinesOfIdsMayEndAsASpreadsheetEndsThem) {
  const auto prompts = Read("ids.csv",
                            "\xEF\xBB\xBF"
                            "1,2\r\n3\r\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status().message();
  ASSERT_EQ(prompts->size(), 2u);
  EXPECT_THAT((*prompts)[0].tokens, ElementsAre(1, 2));
  EXPECT_THAT((*prompts)[1].tokens, ElementsAre(3));
}

TEST_F(ReadPromptsTest, NamesFileAndLineOfWhatIsNoId) {
  EXPECT_THAT(Read("ids.csv", "1\n\n2,1.5\n").status().message(),
              HasSubstr("ids.csv, line 3: '1.5' is not a token id"));
}

}  // namespace
}  // namespace tandem::apps
