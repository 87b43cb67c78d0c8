#include "apps/verbs/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace tandem::apps {
namespace {

using ::testing::HasSubstr;

// One answer; -1 stands for text without a token.
serve::TextResult ResultOf(const std::vector<int32_t>& tokens) {
  serve::TextResult result;
  serve::TextChoice& choice = result.choices.emplace_back();
  for (const int32_t token : tokens) {
    choice.text += "x";
    serve::TokenPiece& piece = choice.pieces.emplace_back();
    piece.token = token;
    piece.text = "x";
  }
  return result;
}

TEST(CsvLinesTest, LeaveOutTextWithoutAToken) {
  // The bytes of an incomplete character come after the last token.
  EXPECT_EQ(CsvLines(ResultOf({5, 7, -1})), "5,7\n");
  EXPECT_EQ(CsvLines(ResultOf({})), "\n");
}

TEST(OutputNameTest, MatchesTheOldTool) {
  EXPECT_EQ(OutputName(3, 0, false), "Output [Text 3 Beam 0]");
  EXPECT_EQ(OutputName(3, 1, true), "Output [Text 3 Seq 1 Beam 0]");
}

class AnswerWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("tandem_answers_test." + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    path_ = (folder_ / "answers.csv").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Two answers, then `end`; returns the contents of stdout.
  std::string WriteTwo(const Status& end) {
    const Console console(/*json=*/true);
    ::testing::internal::CaptureStdout();
    auto writer = AnswerWriter::Open(path_, console);
    EXPECT_TRUE(writer.ok());
    EXPECT_TRUE(writer->Write({.shown = "one", .tokens = {}}, ResultOf({1})).ok());
    EXPECT_TRUE(writer->Write({.shown = "\xff", .tokens = {}}, ResultOf({2})).ok());
    finished_ = writer->Finish(end);
    return ::testing::internal::GetCapturedStdout();
  }

  std::filesystem::path folder_;
  std::string path_;
  Status finished_;
};

TEST_F(AnswerWriterTest, TheFileGetsItsNameAfterTheLastAnswer) {
  const auto json = nlohmann::json::parse(WriteTwo({}));
  EXPECT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["input"], "one");
  EXPECT_TRUE(finished_.ok());
  EXPECT_EQ(*ReadTextFile(path_), "1\n2\n");
}

TEST_F(AnswerWriterTest, AnErrorSaysWhereTheFinishedAnswersAre) {
  const auto json = nlohmann::json::parse(WriteTwo(Unavailable("the engine ended")));
  EXPECT_EQ(json.size(), 2u);
  EXPECT_EQ(finished_.code(), Code::kUnavailable);
  EXPECT_THAT(finished_.message(),
              HasSubstr("the engine ended (the 2 answers before it are in " + path_ + ".partial)"));
  EXPECT_FALSE(NameExists(path_));
  EXPECT_EQ(*ReadTextFile(path_ + ".partial"), "1\n2\n");
}

// The limit on a file's size stands for a full disk.
TEST_F(AnswerWriterTest, AFullDiskCountsOnlyTheAnswersThatTheFileHolds) {
  struct Case {
    rlim_t bytes;
    std::string_view told;
  };
  for (const Case& full : {Case{0, "(no answer is in "}, Case{3, "(the 1 answer before it is in "},
                           Case{4, "(the 2 answers before it are in "}}) {
    const Console console(/*json=*/false);
    auto writer = AnswerWriter::Open(path_, console);
    ASSERT_TRUE(writer.ok());
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limited{.rlim_cur = full.bytes, .rlim_max = before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limited), 0);
    Status status;
    for (int i = 0; i < 3 && status.ok(); ++i) {
      status = writer->Write({.shown = "x", .tokens = {}}, ResultOf({1}));
    }
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(writer->Finish(status).message(),
                HasSubstr(std::string(full.told) + path_ + ".partial)"));
  }
}

}  // namespace
}  // namespace tandem::apps
