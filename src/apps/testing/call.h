// Calls the program within a test. One call at a time.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/cli/command.h"

namespace tandem::apps {

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

// `tandem WORDS...`
inline Ran Call(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"tandem"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Ran ran;
  ran.code = Main(static_cast<int>(argv.size()), argv.data());
  ran.out = ::testing::internal::GetCapturedStdout();
  ran.err = ::testing::internal::GetCapturedStderr();
  return ran;
}

}  // namespace tandem::apps
