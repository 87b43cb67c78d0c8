#include "base/cache_folder.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace tandem {
namespace {

// The variables as a test sets them; as they were before, afterwards.
class CacheFolderTest : public testing::Test {
 protected:
  CacheFolderTest() {
    for (const char* name : {"DJL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
  }
  ~CacheFolderTest() override {
    for (const char* name : {"DJL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::map<std::string, std::string> before_;
};

TEST_F(CacheFolderTest, TheFirstVariableThatIsSetDecides) {
  EXPECT_EQ(CacheFolder().status().code(), Code::kFailedPrecondition);
  ::setenv("HOME", "/home/user", 1);
  EXPECT_EQ(CacheFolder().value(), "/home/user/.cache/tandem");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(CacheFolder().value(), "/home/user/.cache/tandem");
  ::setenv("XDG_CACHE_HOME", "/var/cache", 1);
  EXPECT_EQ(CacheFolder().value(), "/var/cache/tandem");
  ::setenv("DJL_CACHE_DIR", "/tmp/.djl.ai", 1);
  EXPECT_EQ(CacheFolder().value(), "/tmp/.djl.ai");
}

}  // namespace
}  // namespace tandem
