#include "serve/openai/request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tandem::serve::openai {
namespace {

TEST(OpenAiRequestTest, EverySamplingParameterIsReadByItsName) {
  ForEachSamplingParameter([](const SamplingParameter& parameter, const auto& members) {
    const auto read = [&](std::string_view value) {
      return ParseCall(Endpoint::kCompletions,
                       fmt::format(R"({{"prompt": "a", "{}": {}}})", parameter.name, value));
    };
    const Result<Call> call = read("1");
    ASSERT_TRUE(call.ok()) << call.status().message();
    EXPECT_EQ(call->prompts.front().sampling.*members.given, 1) << parameter.name;
    EXPECT_EQ(read("\"1\"").status().field(), parameter.name);
    EXPECT_EQ(read("1.5").ok(), !parameter.is_integer()) << parameter.name;
  });
}

TEST(OpenAiRequestTest, ABiasIsAtMostTheProtocolsHundred) {
  const auto read = [](std::string_view bias) {
    return ParseCall(Endpoint::kCompletions,
                     fmt::format(R"({{"prompt": "a", "logit_bias": {{"5": {}}}}})", bias));
  };
  const Result<Call> call = read("-100");
  ASSERT_TRUE(call.ok()) << call.status().message();
  EXPECT_EQ(call->prompts.front().logit_bias.front().second, -100);
  for (const char* bias : {"-100.5", "101"}) {
    EXPECT_EQ(read(bias).status().message(), "logit_bias: must be a number from -100 to 100");
  }
}

}  // namespace
}  // namespace tandem::serve::openai
