#include "serve/generation_defaults.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "text/testing/tokenizers.h"

namespace tandem::serve {
namespace {

Result<GenerationDefaults> Load(std::string_view text) {
  TemporaryFolder folder;
  folder.Write("generation_config.json", std::string(text));
  return LoadGenerationDefaults(folder.path());
}

TEST(GenerationDefaultsTest, ReadsTheParametersWhoseRowsSaySo) {
  ForEachSamplingParameter([](const SamplingParameter& parameter, const auto& members) {
    const Result<GenerationDefaults> read = Load(fmt::format(R"({{"{}": 1}})", parameter.name));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ((read->sampling.*members.given).has_value(), parameter.has_model_default)
        << parameter.name;
  });
  EXPECT_EQ(Load(R"({"do_sample": false})")->do_sample, false);
}

TEST(GenerationDefaultsTest, AFieldOfAWrongTypeIsNamedWithTheFile) {
  const Status status = Load(R"({"top_k": 1.5})").status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.field(), "top_k");
  EXPECT_NE(status.message().find("generation_config.json"), std::string::npos);
  EXPECT_EQ(Load("[]").status().code(), Code::kDataLoss);
  EXPECT_FALSE(LoadGenerationDefaults("there/is/no/such/folder")->do_sample.has_value());
}

}  // namespace
}  // namespace tandem::serve
