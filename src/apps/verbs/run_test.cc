// `tandem run` as a whole, over the embedded draft model, which is small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/testing/call.h"
#include "base/file.h"
#include "base/testing/source_dir.h"

namespace tandem::apps {
namespace {

struct Limits {
  int max_batch_size = 0;
  int max_queue_size = 0;
};

// More prompts than any limit takes at once. The limits agree: no prompt is refused, whichever of
// them is the larger, also where every prompt goes through the tokenizer's queue (bad words).
TEST(RunTest, MorePromptsThanEveryLimitAreAllAnswered) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                       ("tandem_run_test." + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const std::string prompts = (folder / "prompts.csv").string();
  const std::string answers = (folder / "answers.csv").string();
  constexpr int kPrompts = 600;
  std::string lines;
  for (int i = 0; i < kPrompts; ++i) lines += std::to_string(100 + i) + "\n";
  ASSERT_TRUE(WriteFileAtomically(prompts, lines).ok());
  const std::string model = (SourceDir() / "models/dictionary/draft").string();
  for (const Limits limits : {Limits{128, 256}, Limits{256, 256}, Limits{128, 512}}) {
    for (const bool has_bad_words : {false, true}) {
      std::vector<std::string> words = {"run",
                                        model,
                                        "--device",
                                        "cpu",
                                        "--input_file",
                                        prompts,
                                        "--output_csv",
                                        answers,
                                        "--max_output_len",
                                        "1",
                                        "--max_seq_len",
                                        "32",
                                        "--max_batch_size",
                                        std::to_string(limits.max_batch_size),
                                        "--max_queue_size",
                                        std::to_string(limits.max_queue_size)};
      if (has_bad_words) words.insert(words.end(), {"--bad_words", "foo"});
      const Ran ran = Call(words);
      EXPECT_EQ(ran.code, 0) << ran.err;
      const auto written = ReadTextFile(answers);
      ASSERT_TRUE(written.ok()) << written.status().message();
      EXPECT_EQ(std::ranges::count(*written, '\n'), kPrompts);
      std::filesystem::remove(answers);
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tandem::apps
