// TANDEM_CHECK(condition, "sentence with the values") ends the program when one of our invariants
// is broken: file, line, condition and sentence go to stderr. For bad input from outside, return a
// Status instead. Safe on any thread; costs one branch.
#pragma once

#include <string_view>

namespace tandem {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              std::string_view message);

}  // namespace tandem

#define TANDEM_CHECK(condition, ...)                                      \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::tandem::CheckFailed(__FILE__, __LINE__, #condition,               \
                            ::std::string_view{__VA_OPT__(__VA_ARGS__)}); \
  } while (false)
