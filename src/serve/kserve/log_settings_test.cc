#include "serve/kserve/log_settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/log.h"

namespace tandem::serve::kserve {
namespace {

std::map<std::string, Parameter> Read() {
  std::map<std::string, Parameter> settings;
  for (const auto& [name, value] : LogSettings()) settings.emplace(name, value);
  return settings;
}

class LogSettingsTest : public testing::Test {
 protected:
  void SetUp() override { ConfigureLog(LogLevel::kInfo, LogFormat::kText); }
  void TearDown() override { ConfigureLog(LogLevel::kInfo, LogFormat::kText); }
};

TEST_F(LogSettingsTest, AreTheLogsOwn) {
  EXPECT_EQ(Read()["log_info"], Parameter(true));
  EXPECT_EQ(Read()["log_verbose_level"], Parameter(int64_t{0}));
  ASSERT_TRUE(SetLogSettings({{"log_info", false}}).ok());
  EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
  EXPECT_TRUE(LogEnabled(LogLevel::kWarning));
  ASSERT_TRUE(SetLogSettings({{"log_verbose_level", int64_t{3}}}).ok());
  EXPECT_TRUE(LogEnabled(LogLevel::kDebug));
  EXPECT_EQ(Read()["log_verbose_level"], Parameter(int64_t{3}));
  ASSERT_TRUE(SetLogSettings({{"log_format", std::string("ISO8601")}}).ok());
  EXPECT_EQ(Read()["log_format"], Parameter(std::string("ISO8601")));
  ASSERT_TRUE(SetLogSettings({{"log_format", std::string("default")}}).ok());
}

TEST_F(LogSettingsTest, AWrongSettingIsNamedAndChangesNothing) {
  EXPECT_EQ(SetLogSettings({{"log_error", false}, {"log_level", int64_t{1}}}).field(), "log_level");
  EXPECT_TRUE(LogEnabled(LogLevel::kError));
  EXPECT_EQ(SetLogSettings({{"log_verbose_level", std::string("much")}}).field(),
            "log_verbose_level");
  EXPECT_EQ(SetLogSettings({{"log_info", int64_t{1}}}).field(), "log_info");
  EXPECT_EQ(SetLogSettings({{"log_file", std::string("/x")}}).code(), Code::kUnimplemented);
  EXPECT_TRUE(SetLogSettings({{"log_file", std::string()}}).ok());
}

}  // namespace
}  // namespace tandem::serve::kserve
