// Texts of a real tokenizer through codec, service and routes.
#include "serve/text_codec.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "serve/request_builder.h"
#include "serve/testing/test_server.h"
#include "text/detokenizer.h"
#include "text/testing/tokenizers.h"

namespace tandem::serve {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kManyRows = 1 << 20;

class EveryTokenizerTest : public testing::TestWithParam<const char*> {};

// The completion's text, unstreamed or streamed; the two choices of each must be equal.
std::string Complete(const TestServer& server, std::span<const int32_t> prompt, bool stream,
                     bool skip_special) {
  const std::string body = nlohmann::json{
      {"prompt", std::vector<int32_t>(prompt.begin(), prompt.end())},
      {"n", 2},
      {"max_tokens", 1000},
      {"ignore_eos", true},
      {"skip_special_tokens", skip_special},
      {"stream", stream}}.dump();
  HttpClient client = server.Client();
  std::string texts[2];
  const auto add = [&](const std::string& data) {
    const auto json = nlohmann::json::parse(data);
    ASSERT_TRUE(json.contains("choices")) << data;
    for (const auto& choice : json["choices"]) {
      texts[choice["index"].get<size_t>()] += choice["text"];
    }
  };
  if (!stream) {
    add(client.Post("/v1/completions", body)->body);
  } else {
    EXPECT_EQ(client.OpenStream("/v1/completions", body)->status, 200);
    for (std::string data; data != "[DONE]"; data = client.NextEvent()->value()) {
      if (!data.empty()) add(data);
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

TEST_P(EveryTokenizerTest, PromptAndCompletionJoinToTheDecodedTokens) {
  const auto tokenizer = LoadTestTokenizer(GetParam());
  FakeEngineOptions options;
  std::vector<int32_t> answer;
  options.script = [&](const std::string&) {
    return Script{.answer = {}, .fail_after = {}, .later_answer = {}, .tokens = answer};
  };
  TestServer server(options, {}, {},
                    LoadTextCodec(TestTokenizerDir(GetParam()), kManyRows).value());
  for (const std::string text :
       {"The lazy dog sees two dogs", " a  b ", "h\xC3\xA9 \xF0\x9F\x99\x82!"}) {
    std::vector<int32_t> ids = tokenizer->Encode(text, true).value();
    // A special token between words, and at the end.
    if (!tokenizer->EosIds().empty()) {
      const int32_t special = tokenizer->EosIds().front();
      ids.insert(ids.end() - 1, special);
      ids.push_back(special);
    }
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      const auto prompt = std::span(ids).first(cut);
      answer.assign(ids.begin() + static_cast<ptrdiff_t>(cut), ids.end());
      for (const bool skip : {true, false}) {
        std::string shown;  // of the prompt; a character it leaves unfinished comes with the answer
        Detokenizer detokenizer(tokenizer, skip);
        for (const int32_t id : prompt) shown += detokenizer.Push(id);
        const std::string whole = Decode(tokenizer, ids, skip);
        EXPECT_EQ(shown + Complete(server, prompt, false, skip), whole) << cut;
        EXPECT_EQ(shown + Complete(server, prompt, true, skip), whole) << cut;
      }
    }
  }
}

TEST_P(EveryTokenizerTest, AnAnswerThatIsReadByItselfBeginsWithoutADecodersSpace) {
  const auto codec = LoadTextCodec(TestTokenizerDir(GetParam()), kManyRows).value();
  const std::vector<int32_t> ids = codec->Encode("dog", false).value();
  std::string text;
  const auto decoder = codec->NewDecoder({}, /*skip_special=*/true);
  for (const int32_t id : ids) text += decoder->Push(id);
  const bool keeps = GetParam() == std::string_view("byte_level_gpt2");
  EXPECT_EQ(text, keeps ? " dog" : "dog");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EveryTokenizerTest, testing::ValuesIn(kTestTokenizers),
                         [](const auto& info) { return std::string(info.param); });

TEST(TextCodecTest, RefusesATokenizerWhoseWordsTheModelHasNoRowsFor) {
  const Status status = LoadTextCodec(TestTokenizerDir("byte_level"), 600).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("its token 600, "));
  EXPECT_THAT(status.message(), HasSubstr("vocabulary goes from 0 to 599"));
  EXPECT_TRUE(LoadTextCodec(TestTokenizerDir("byte_level"), 628).ok());
}

TEST(TextCodecTest, ASpecialTokenBeyondTheModelIsNeverReadNorWritten) {
  TemporaryFolder folder;
  WriteTokenizerWithExtra(folder);
  folder.Write("generation_config.json", R"({"eos_token_id": [2, 628]})");
  const auto codec = LoadTextCodec(folder.path(), 628).value();
  EXPECT_EQ(codec->vocab_size(), 628);
  EXPECT_EQ(codec->end_ids(), std::vector<int32_t>{2});
  EXPECT_EQ(codec->SpecialToken("<|extra|>"), std::nullopt);
  EXPECT_EQ(codec->SpecialToken("<|eot|>"), 2);

  TextRequest request;
  request.text = "a word <|extra|>";
  const EngineLimits engine{.max_seq_len = 100, .max_input_len = 90, .max_choices = 8};
  const Status status =
      BuildRequest(request, *codec, {}, engine, RequestLimits(), Nanos(0)).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "prompt");
  EXPECT_THAT(status.message(), HasSubstr("\"<|extra|>\" (628)"));

  // The model's masks are shorter than the tokenizer: nothing is written after them.
  const auto constraint = codec->BanWords({"a", "<|extra|>"}).value()->Clone();
  std::vector<uint32_t> bits(21, ~0u);
  constraint->FillMask({}, std::span(bits).first(20));
  EXPECT_EQ(bits.back(), ~0u);
  EXPECT_NE(*std::ranges::min_element(bits), ~0u);
}

TEST(TextCodecTest, APromptFitsByItsTokensHoweverManyBytesTheyHave) {
  const auto build = [](const std::filesystem::path& folder, std::string text) {
    const auto codec = LoadTextCodec(folder, kManyRows).value();
    TextRequest request;
    request.text = std::move(text);
    const EngineLimits engine{.max_seq_len = 1024, .max_input_len = 1023, .max_choices = 8};
    return BuildRequest(request, *codec, {}, engine, RequestLimits(), Nanos(0));
  };
  std::string words = "psychologically";
  for (int i = 1; i < 600; ++i) words += " psychologically";
  const auto dictionary = build(SourceDir() / "models/dictionary/target", words);
  ASSERT_TRUE(dictionary.ok()) << dictionary.status().message();
  EXPECT_LE(dictionary->request.prompt.size(), 602u);
  // One unknown word, one token.
  const auto unknown = build(TestTokenizerDir("word_piece"), std::string(256 << 10, 'a'));
  ASSERT_TRUE(unknown.ok()) << unknown.status().message();
  EXPECT_EQ(unknown->request.prompt.size(), 2u);
}

}  // namespace
}  // namespace tandem::serve
