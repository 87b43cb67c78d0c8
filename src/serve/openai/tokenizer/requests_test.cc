#include "serve/openai/tokenizer/requests.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/testing/byte_codec.h"

namespace tandem::serve::openai {
namespace {

constexpr EngineLimits kLimits{.max_seq_len = 16, .max_input_len = 16};

std::string TokenizeOf(std::string_view body) {
  const Result<TokenizeCall> call = ParseTokenize(body);
  if (!call.ok()) return call.status().message();
  const Result<std::string> answer = Tokenize(*call, ByteCodec(), RequestLimits(), kLimits);
  return answer.ok() ? *answer : answer.status().message();
}

std::string DetokenizeOf(std::string_view body) {
  const Result<DetokenizeCall> call = ParseDetokenize(body);
  if (!call.ok()) return call.status().message();
  const Result<std::string> answer = Detokenize(*call, ByteCodec());
  return answer.ok() ? *answer : answer.status().message();
}

TEST(TokenizerRequestsTest, APromptIsTokenizedWithSpecialTokensUnlessToldOtherwise) {
  EXPECT_EQ(TokenizeOf(R"({"model": "m", "prompt": "ab"})"),
            R"({"count":3,"max_model_len":16,"tokens":[1,100,101],"token_strs":null})");
  EXPECT_EQ(
      TokenizeOf(R"({"prompt": "aé", "add_special_tokens": false, "return_token_strs": true})"),
      R"({"count":3,"max_model_len":16,"tokens":[100,198,172],)"
      R"("token_strs":["a","bytes:\\xc3","bytes:\\xa9"]})");
  EXPECT_EQ(TokenizeOf(R"({"prompt": "", "add_special_tokens": false})"),
            R"({"count":0,"max_model_len":16,"tokens":[],"token_strs":null})");
}

TEST(TokenizerRequestsTest, ATextThatIsTooLongIsCountedAllTheSame) {
  const std::string answer = TokenizeOf(fmt::format(R"({{"prompt": "{:a<1000}"}})", ""));
  EXPECT_TRUE(answer.starts_with(R"({"count":1001,)")) << answer;
}

TEST(TokenizerRequestsTest, MessagesAreRenderedByTheTemplateAndGetNoMoreSpecialTokens) {
  const std::string answer =
      TokenizeOf(R"({"messages": [{"role": "user", "content": "a"}], "return_token_strs": true})");
  EXPECT_TRUE(answer.starts_with(R"({"count":19,)")) << answer;  // "user: a\nassistant: "
  EXPECT_TRUE(answer.find(R"("token_strs":["u","s","e","r")") != std::string::npos) << answer;
}

TEST(TokenizerRequestsTest, ABodyThatIsWrongNamesItsField) {
  EXPECT_TRUE(TokenizeOf("{}").starts_with("prompt: is required"));
  EXPECT_TRUE(TokenizeOf("[]").starts_with("the body must be a JSON object"));
  EXPECT_TRUE(TokenizeOf(R"({"prompt": 5})").starts_with("prompt: "));
  EXPECT_TRUE(TokenizeOf(R"({"prompt": "a", "messages": []})").starts_with("prompt: cannot"));
  EXPECT_TRUE(TokenizeOf(R"({"messages": []})").starts_with("messages: "));
  EXPECT_TRUE(TokenizeOf(R"({"prompt": "a", "add_special_tokens": 1})")
                  .starts_with("add_special_tokens: "));
  for (const char* bad : {"{}", R"({"tokens": "a"})", R"({"tokens": [-1]})", R"({"tokens": [1.5]})",
                          R"({"tokens": [259]})"}) {
    EXPECT_TRUE(DetokenizeOf(bad).starts_with("tokens: ")) << bad << DetokenizeOf(bad);
  }
}

TEST(TokenizerRequestsTest, TokensBecomeTextWithTheNamesOfSpecialTokens) {
  EXPECT_EQ(DetokenizeOf(R"({"tokens": [1, 100, 198, 172, 2]})"),
            "{\"prompt\":\"<s>a\xC3\xA9</s>\"}");
  EXPECT_EQ(DetokenizeOf(R"({"tokens": [198]})"), "{\"prompt\":\"\xEF\xBF\xBD\"}");
  EXPECT_EQ(DetokenizeOf(R"({"tokens": []})"), R"({"prompt":""})");
}

TEST(TokenizerRequestsTest, TheTokenizerIsDescribedByItsConfigsNames) {
  EXPECT_EQ(DescribeTokenizer(ByteCodec(), kLimits),
            R"({"bos_token":"<s>","eos_token":"</s>","pad_token":"<pad>","vocab_size":259,)"
            R"("model_max_length":16,"chat_template":"<tool_call> </think>"})");
}

}  // namespace
}  // namespace tandem::serve::openai
