#include "base/bound_options.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

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
  });
  return rows;
}

TEST(BoundOptionsTest, TheTableHasTheDefaultsOfTheStruct) {
  const OptionValues values(Rows().specs());
  EXPECT_EQ(values.Int("port"), 8000);
  EXPECT_EQ(values.Int("bytes"), 1 << 20);
  EXPECT_EQ(values.Float("share"), 0.25);
  EXPECT_TRUE(values.Flag("on"));
  EXPECT_EQ(values.Given("off"), "");
  EXPECT_EQ(values.Text("name"), "tandem");
  EXPECT_EQ(values.Float("wait"), 1.5);
  Settings settings;
  Rows().Apply(values, settings);
  EXPECT_EQ(settings.inner.port, 8000);
  EXPECT_EQ(settings.wait, Settings().wait);
  EXPECT_TRUE(settings.on);
  EXPECT_FALSE(settings.off);
}

TEST(BoundOptionsTest, AValueGoesIntoItsField) {
  OptionValues values(Rows().specs());
  for (const auto& [name, value] :
       {std::pair("port", "0"), std::pair("bytes", "2K"), std::pair("share", "0.5"),
        std::pair("on", "false"), std::pair("name", "x"), std::pair("wait", "0.25")}) {
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
  EXPECT_FALSE(values.Set("port", {"70000"}, "port").ok());
}

}  // namespace
}  // namespace tandem
