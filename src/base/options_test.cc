#include "base/options.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace tandem {
namespace {

constexpr OptionSpec kSpecs[] = {
    {.name = "max_batch_size",
     .type = OptionType::kInt,
     .default_value = "64",
     .meaning = "sequences a step",
     .min = 1,
     .max = 4096},
    {.name = "isa", .default_value = "auto", .meaning = "kernels", .choices = "auto|avx2|amx"},
    {.name = "kv_cache_bytes", .type = OptionType::kBytes, .meaning = "cache", .min = 0},
    {.name = "no_draft", .type = OptionType::kFlag, .meaning = "plain decoding"},
    {.name = "top_p", .type = OptionType::kFloat, .default_value = "0.5", .meaning = "", .max = 1},
    {.name = "batch", .type = OptionType::kInts, .default_value = "1,8", .min = 1},
    {.name = "shares", .type = OptionType::kFloats, .min = 0, .max = 1},
    {.name = "input_text", .type = OptionType::kTexts, .meaning = "prompts", .alias = "-i|prompt"},
};

TEST(OptionValuesTest, StartsWithTheDefaults) {
  const OptionValues values(kSpecs);
  EXPECT_EQ(values.Int(*values.Find("max_batch_size")), 64);
  EXPECT_EQ(values.Text(*values.Find("isa")), "auto");
  EXPECT_EQ(values.Int(*values.Find("kv_cache_bytes")), 0);
  EXPECT_FALSE(values.Flag(*values.Find("no_draft")));
  EXPECT_EQ(values.Float(*values.Find("top_p")), 0.5);
  EXPECT_TRUE(values.Texts(*values.Find("input_text")).empty());
  EXPECT_FALSE(values.IsSet(*values.Find("isa")));
}

TEST(OptionValuesTest, ReadsEveryType) {
  OptionValues values(kSpecs);
  EXPECT_TRUE(values.Set("kv_cache_bytes", {"3G"}, "x").ok());
  EXPECT_EQ(values.Int(*values.Find("kv_cache_bytes")), int64_t{3} << 30);
  EXPECT_TRUE(values.Set("no_draft", {"enable"}, "x").ok());
  EXPECT_TRUE(values.Flag(*values.Find("no_draft")));
  EXPECT_TRUE(values.Set("-i", {"a", "b"}, "x").ok());
  EXPECT_EQ(values.Texts(*values.Find("input_text")).size(), 2u);
}

TEST(OptionValuesTest, AnOptionIsFoundUnderEachOfItsNames) {
  OptionValues values(kSpecs);
  for (const char* name : {"-i", "prompt", "input_text"}) {
    EXPECT_EQ(values.Find(name), values.Find("input_text")) << name;
  }
  EXPECT_EQ(values.Find("-i|prompt"), nullptr);
  EXPECT_EQ(values.Set("promt", {"x"}, "--promt").message(),
            "--promt: there is no such option; did you mean --prompt?");
}

TEST(OptionValuesTest, NamesThePlaceAndWhatIsAllowed) {
  OptionValues values(kSpecs);
  EXPECT_EQ(values.Set("max_batch_size", {"0"}, "--max_batch_size").message(),
            "--max_batch_size: '0' is out of range; it takes a number from 1 to 4096");
  EXPECT_EQ(values.Set("isa", {"mmx"}, "--isa").message(),
            "--isa: 'mmx' is unknown; it takes one of auto, avx2, amx");
  EXPECT_EQ(values.Set("max_batch_sise", {"1"}, "--max_batch_sise").message(),
            "--max_batch_sise: there is no such option; did you mean --max_batch_size?");
  EXPECT_EQ(values.Set("zzzz", {"1"}, "--zzzz").message(), "--zzzz: there is no such option");
  EXPECT_FALSE(values.Set("top_p", {"nan"}, "--top_p").ok());
  EXPECT_FALSE(values.Set("top_p", {"1e999"}, "--top_p").ok());
  EXPECT_FALSE(values.Set("max_batch_size", {"12x"}, "--max_batch_size").ok());
  EXPECT_FALSE(values.Set("kv_cache_bytes", {"9999999999G"}, "x").ok());
  EXPECT_EQ(values.Int(*values.Find("max_batch_size")), 64);
}

TEST(OptionValuesTest, RefusesAnEmptyValueByName) {
  OptionValues values(kSpecs);
  EXPECT_EQ(values.Set("isa", {""}, "--isa").message(),
            "--isa: the value is empty; it takes one of auto, avx2, amx, or leave it out");
  EXPECT_EQ(values.Set("-i", {"a", ""}, "--input_text").message(),
            "--input_text: the value is empty; it takes text, or leave it out");
  EXPECT_FALSE(values.IsSet(*values.Find("isa")));
}

TEST(OptionValuesTest, AListHasNumbersBetweenCommas) {
  OptionValues values(kSpecs);
  const OptionSpec& batch = *values.Find("batch");
  const OptionSpec& shares = *values.Find("shares");
  EXPECT_EQ(values.Ints(batch), (std::vector<int64_t>{1, 8}));
  EXPECT_TRUE(values.Floats(shares).empty());
  ASSERT_TRUE(values.Set("batch", {"32"}, "--batch").ok());
  ASSERT_TRUE(values.Set("shares", {"0.6,1"}, "--shares").ok());
  EXPECT_EQ(values.Ints(batch), (std::vector<int64_t>{32}));
  EXPECT_EQ(values.Floats(shares), (std::vector<double>{0.6, 1}));
  EXPECT_EQ(values.Set("batch", {"1,x"}, "--batch").message(),
            "--batch: '1,x' has 'x', which is not an integer; it takes a number of at least 1, or "
            "several between commas");
  for (const char* list : {"1,,2", ",1", "1,", ",", "1,0", "1.5"}) {
    EXPECT_FALSE(values.Set("batch", {list}, "--batch").ok()) << list;
  }
  EXPECT_FALSE(values.Set("shares", {"0.5,-0.5"}, "--shares").ok());
}

TEST(OptionValuesTest, KeepsWhatWasGiven) {
  OptionValues values(kSpecs);
  EXPECT_EQ(values.Given(*values.Find("kv_cache_bytes")), "");
  ASSERT_TRUE(values.Set("kv_cache_bytes", {"3G"}, "x").ok());
  EXPECT_EQ(values.Given(*values.Find("kv_cache_bytes")), "3G");
}

TEST(ClosestNameTest, FindsSlipsOfTheHandAndNothingFarOff) {
  constexpr std::string_view kVerbs[] = {"serve", "run", "bench", "build"};
  EXPECT_EQ(ClosestName("sevre", kVerbs), "serve");
  EXPECT_EQ(ClosestName("buld", kVerbs), "build");
  EXPECT_EQ(ClosestName("rnu", kVerbs), "run");
  EXPECT_EQ(ClosestName("quantize", kVerbs), "");
  EXPECT_EQ(ClosestName("", kVerbs), "");
}

TEST(OptionValuesTest, EnvironmentFillsOnlyWhatWasNotSet) {
  ::setenv("TANDEM_ISA", "amx", 1);
  ::setenv("TANDEM_MAX_BATCH_SIZE", "8", 1);
  OptionValues values(kSpecs);
  ASSERT_TRUE(values.Set("isa", {"avx2"}, "--isa").ok());
  ASSERT_TRUE(values.ReadEnvironment().ok());
  EXPECT_EQ(values.Text(*values.Find("isa")), "avx2");
  EXPECT_EQ(values.Int(*values.Find("max_batch_size")), 8);
  ::setenv("TANDEM_MAX_BATCH_SIZE", "many", 1);
  EXPECT_NE(OptionValues(kSpecs).ReadEnvironment().message().find("TANDEM_MAX_BATCH_SIZE"),
            std::string::npos);
  ::unsetenv("TANDEM_ISA");
  ::unsetenv("TANDEM_MAX_BATCH_SIZE");
}

TEST(ParseBytesTest, TakesUnitsOf1000AndOf1024) {
  constexpr int64_t kMillion = 1'000'000;
  const std::pair<std::string_view, int64_t> kCases[] = {{"64", 64},
                                                         {"64KB", 64000},
                                                         {"64mb", 64 * kMillion},
                                                         {"2GB", 2000 * kMillion},
                                                         {"3TB", 3 * kMillion * kMillion},
                                                         {"64KiB", 64 << 10},
                                                         {"64MiB", 64 << 20},
                                                         {"64M", 64 << 20},
                                                         {"2gib", int64_t{2} << 30},
                                                         {"3TiB", int64_t{3} << 40}};
  for (const auto& [text, bytes] : kCases) {
    const Result<int64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
  for (const std::string_view text : {"", "MB", "64B", "64XB", "64MBB", "6 4MB", "1.5GB", "i"}) {
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
  }
}

TEST(AllowedValuesTest, NamesTheUnitsOfBytes) {
  OptionValues values(kSpecs);
  EXPECT_EQ(values.Set("kv_cache_bytes", {"64XB"}, "--kv_cache_bytes").message(),
            "--kv_cache_bytes: '64XB' has an unknown unit; it takes bytes, as a number or with a "
            "unit: KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024)");
}

TEST(AllowedValuesTest, ShowsIntegersInAllTheirDigits) {
  EXPECT_EQ(AllowedValues({.type = OptionType::kInt, .min = 1, .max = 1 << 20}),
            "a number from 1 to 1048576");
  EXPECT_EQ(AllowedValues({.type = OptionType::kInt, .max = 1e18}),
            "a number of at most 1000000000000000000");
  EXPECT_EQ(AllowedValues({.type = OptionType::kFloat, .min = 0.01, .max = 0.99}),
            "a number from 0.01 to 0.99");
}

TEST(FormatBytesTest, IsShortAndExactEnough) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(int64_t{300} << 20), "300 MiB");
}

}  // namespace
}  // namespace tandem
