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

}  // namespace
}  // namespace tandem::serve::openai
