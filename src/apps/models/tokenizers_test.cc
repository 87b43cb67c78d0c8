// What a session says about a draft whose vocabulary is not the target's.
#include "apps/models/tokenizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "apps/models/describe_model.h"
#include "checkpoint/output_folder.h"
#include "text/testing/tokenizers.h"

namespace tandem::apps {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 628;  // tokens of the tokenizer byte_level

class OpenTextModelTest : public ::testing::Test {
 protected:
  void SetUp() override { Copy("byte_level", target_); }

  static void Copy(const char* name, const TemporaryFolder& folder) {
    folder.Write("tokenizer.json", ReadFile(TestTokenizerDir(name) / "tokenizer.json"));
  }

  // Opens the target beside a draft of `draft_rows` tokens; its warnings are in said_.
  Status Open(int64_t draft_rows = kRows) {
    Session session;
    session.target.folder = target_.path();
    session.target.spec.vocab_size = kRows;
    session.draft = std::make_unique<LoadedModel>();
    session.draft->folder = draft_.path();
    session.draft->spec.vocab_size = draft_rows;
    ::testing::internal::CaptureStderr();
    const Status status = OpenTextModel(session).status();
    said_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  TemporaryFolder target_;
  TemporaryFolder draft_;
  std::string said_;
};

TEST(DescribeTokenizer, NamesTheKindTheFileAndTheNumberOfTokens) {
  const auto describe = [](const char* name) {
    return *DescribeTokenizer(TestTokenizerDir("folders") / name);
  };
  EXPECT_EQ(describe("llama"), "SentencePiece BPE (tokenizer.model), 700 tokens");
  EXPECT_THAT(describe("chatglm"), HasSubstr("SentencePiece unigram (ice_text.model)"));
  EXPECT_THAT(describe("qwen"), HasSubstr("tiktoken ranks of Qwen (qwen.tiktoken)"));
  EXPECT_THAT(describe("glm4"), HasSubstr("tiktoken ranks of GLM-4 (tokenizer.model)"));
  EXPECT_THAT(describe("tekken"), HasSubstr("Mistral's byte-level BPE (tekken.json)"));
  EXPECT_THAT(describe("gpt2"), HasSubstr("byte-level BPE with merges.txt (vocab.json)"));
  EXPECT_THAT(*DescribeTokenizer(TestTokenizerDir("byte_level")),
              HasSubstr("Hugging Face (tokenizer.json)"));
  EXPECT_EQ(DescribeTokenizer("/absent").status().code(), Code::kNotFound);
}

// Whatever counts as a tokenizer elsewhere in the program is one that the text library reads.
TEST(DescribeTokenizer, ReadsEveryFileThatMakesAFolderHaveATokenizer) {
  for (const char* name : {"tokenizer.json", "tekken.json", "tokenizer.model", "ice_text.model",
                           "qwen.tiktoken", "vocab.json"}) {
    const TemporaryFolder folder;
    EXPECT_FALSE(HasTokenizer(folder.path()));
    EXPECT_EQ(DescribeTokenizer(folder.path()).status().code(), Code::kNotFound);
    folder.Write(name, "no tokenizer");
    EXPECT_TRUE(HasTokenizer(folder.path())) << name;
    const Status status = DescribeTokenizer(folder.path()).status();
    EXPECT_EQ(status.code(), Code::kDataLoss) << name;
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
}

TEST_F(OpenTextModelTest, ADraftOfTheSameKindIsTakenSilently) {
  Copy("byte_level", draft_);
  EXPECT_TRUE(Open().ok());
  EXPECT_EQ(said_, "");
}

TEST_F(OpenTextModelTest, ADraftFolderWithoutATokenizerSharesTheTargets) {
  EXPECT_TRUE(Open().ok());
  EXPECT_EQ(said_, "");
}

TEST_F(OpenTextModelTest, ARenamedSpecialTokenIsWarnedOf) {
  std::string json = ReadFile(TestTokenizerDir("byte_level") / "tokenizer.json");
  const std::string old_name = "<|eot|>";
  for (size_t at; (at = json.find(old_name)) != std::string::npos;) {
    json.replace(at, old_name.size(), "<|stop|>");
  }
  draft_.Write("tokenizer.json", json);
  EXPECT_TRUE(Open().ok());
  EXPECT_THAT(said_, HasSubstr(R"(special token 2 is "<|eot|>" in the target's tokenizer and )"
                               R"("<|stop|>" in the draft's)"));
}

TEST_F(OpenTextModelTest, AnotherVocabularySizeIsWarnedOf) {
  Copy("byte_level", draft_);
  EXPECT_TRUE(Open(kRows + 4).ok());
  EXPECT_THAT(said_, HasSubstr("the target's model has 628 rows, the draft's 632"));
}

TEST_F(OpenTextModelTest, BothDifferencesAreInOneWarning) {
  WriteTokenizerWithExtra(draft_);
  EXPECT_TRUE(Open(kRows + 1).ok());
  EXPECT_THAT(said_, HasSubstr("has 628 tokens, the draft's 629; the target's model has 628 rows"));
}

TEST_F(OpenTextModelTest, ADraftThatCannotReadTheTargetsTokensIsRefused) {
  Copy("byte_level", draft_);
  const Status status = Open(kRows - 1);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("the draft's vocabulary is smaller than the target's"));
}

TEST_F(OpenTextModelTest, ADraftWithOtherTokensIsRefused) {
  Copy("metaspace_bytes", draft_);
  const Status status = Open();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("the draft's tokenizer differs from the target's"));
}

TEST_F(OpenTextModelTest, ADraftsTokenizerIsReadInWhateverFormItIs) {
  const auto copy = [](const char* name, const TemporaryFolder& folder) {
    std::filesystem::copy(TestTokenizerDir("folders") / name, folder.path());
  };
  copy("tekken", draft_);
  EXPECT_THAT(Open().message(), HasSubstr("the draft's tokenizer differs from the target's"));
}

TEST_F(OpenTextModelTest, ATargetWithoutAFolderNeedsANamedTokenizer) {
  Session session;
  session.target.spec.vocab_size = kRows;
  EXPECT_THAT(OpenTextModel(session).status().message(), HasSubstr("give --tokenizer_dir"));
  session.options.models.tokenizer_dir = target_.path();
  EXPECT_TRUE(OpenTextModel(session).ok());
}

}  // namespace
}  // namespace tandem::apps
