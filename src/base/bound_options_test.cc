#include "base/bound_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::ElementsAre;

struct Inner {
  uint16_t port = 8000;
};
struct Settings {
  Inner inner;
  int64_t bytes = 1 << 20;
  double share = 0.25;
  bool on = true;
  bool off = false;
  std::string name = "tandem";
  Nanos wait = std::chrono::milliseconds(1500);
  std::optional<double> share_asked;
  std::optional<int64_t> most;
  std::vector<std::string> words;
  std::vector<int32_t> sizes = {1, 8};
  std::vector<double> shares = {0.5};
  char letter = 'b';
};

const BoundOptions<Settings>& Rows() {
  static const BoundOptions<Settings> rows({
      BindOption<Settings, [](Settings& s) -> auto& { return s.inner.port; }>(
          {.name = "port", .min = 0, .max = 65535}),
      BindOption<Settings, &Settings::bytes>({.name = "bytes", .type = OptionType::kBytes}),
      BindOption<Settings, &Settings::share>({.name = "share"}),
      BindOption<Settings, &Settings::on>({.name = "on"}),
      BindOption<Settings, &Settings::off>({.name = "off"}),
      BindOption<Settings, &Settings::name>({.name = "name"}),
      BindOption<Settings, &Settings::wait>({.name = "wait"}),
      BindOption<Settings, &Settings::share_asked>({.name = "share_asked"}),
      BindOption<Settings, &Settings::most>({.name = "most", .default_value = "7"}),
      BindOption<Settings, &Settings::words>({.name = "words"}),
      BindOption<Settings, &Settings::sizes>({.name = "sizes", .min = 1}),
      BindOption<Settings, &Settings::shares>({.name = "shares", .max = 1}),
      BindChoice<Settings, &Settings::letter>({.name = "letter"},
                                              {{"first", 'a'}, {"second", 'b'}}),
  });
  return rows;
}

TEST(BoundOptionsTest, TheTableHasTheDefaultsOfTheStruct) {
  const OptionValues values(Rows().specs());
  EXPECT_EQ(values.Int(*values.Find("port")), 8000);
  EXPECT_EQ(values.Int(*values.Find("bytes")), 1 << 20);
  EXPECT_EQ(values.Float(*values.Find("share")), 0.25);
  EXPECT_TRUE(values.Flag(*values.Find("on")));
  EXPECT_EQ(values.Given(*values.Find("off")), "");
  EXPECT_EQ(values.Text(*values.Find("name")), "tandem");
  EXPECT_EQ(values.Float(*values.Find("wait")), 1.5);
  EXPECT_EQ(values.Given(*values.Find("sizes")), "1,8");
  EXPECT_EQ(values.Given(*values.Find("shares")), "0.5");
  EXPECT_EQ(values.Given(*values.Find("letter")), "second");
  EXPECT_EQ(values.Find("letter")->choices, "first|second");
  Settings settings;
  Rows().Apply(values, settings);
  EXPECT_EQ(settings.inner.port, 8000);
  EXPECT_EQ(settings.wait, Settings().wait);
  EXPECT_TRUE(settings.on);
  EXPECT_FALSE(settings.off);
  EXPECT_EQ(settings.share_asked, std::nullopt);
  EXPECT_EQ(settings.most, 7);
  EXPECT_THAT(settings.sizes, ElementsAre(1, 8));
  EXPECT_THAT(settings.shares, ElementsAre(0.5));
  EXPECT_EQ(settings.letter, 'b');
}

TEST(BoundOptionsTest, AValueGoesIntoItsField) {
  OptionValues values(Rows().specs());
  for (const auto& [name, value] :
       {std::pair("port", "0"), std::pair("bytes", "2K"), std::pair("share", "0.5"),
        std::pair("on", "false"), std::pair("name", "x"), std::pair("wait", "0.25"),
        std::pair("share_asked", "0"), std::pair("most", "9"), std::pair("words", "a,b"),
        std::pair("sizes", "2,32"), std::pair("shares", "0.25,1"), std::pair("letter", "first")}) {
    ASSERT_TRUE(values.Set(name, {value}, name).ok()) << name;
  }
  Settings settings;
  Rows().Apply(values, settings);
  EXPECT_EQ(settings.inner.port, 0);
  EXPECT_EQ(settings.bytes, 2048);
  EXPECT_EQ(settings.share, 0.5);
  EXPECT_FALSE(settings.on);
  EXPECT_EQ(settings.name, "x");
  EXPECT_EQ(settings.wait, std::chrono::milliseconds(250));
  EXPECT_EQ(settings.share_asked, 0.0);
  EXPECT_EQ(settings.most, 9);
  EXPECT_THAT(settings.words, ElementsAre("a,b"));
  EXPECT_THAT(settings.sizes, ElementsAre(2, 32));
  EXPECT_THAT(settings.shares, ElementsAre(0.25, 1.0));
  EXPECT_EQ(settings.letter, 'a');
  EXPECT_FALSE(values.Set("port", {"70000"}, "port").ok());
}

TEST(BoundOptionsTest, ARowIsFoundByItsField) {
  OptionValues values(Rows().specs());
  EXPECT_EQ(Rows().RowOf<&Settings::bytes>().name, "bytes");
  EXPECT_EQ(Rows().RowOf<&Settings::letter>().name, "letter");
  EXPECT_FALSE(values.IsSet(Rows().RowOf<&Settings::wait>()));
  ASSERT_TRUE(values.Set("wait", {"1.5"}, "wait").ok());
  EXPECT_TRUE(values.IsSet(Rows().RowOf<&Settings::wait>()));
}

}  // namespace
}  // namespace tandem
