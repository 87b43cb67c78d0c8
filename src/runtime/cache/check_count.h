// CheckCount compares a count that was kept with one made afresh: if they differ, it aborts and
// names both.
#pragma once

#include <cstdint>
#include <string>

#include "base/check.h"

namespace tandem {

inline void CheckCount(int64_t counted, int64_t kept, const char* what) {
  TANDEM_CHECK(counted == kept, std::string(what) + ": counted " + std::to_string(counted) +
                                    ", kept " + std::to_string(kept));
}

}  // namespace tandem
