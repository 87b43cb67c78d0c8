// Options whose values come from another server's files or environment. Functions; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/options.h"
#include "base/status.h"

namespace tandem::apps {

// Sets an option that is not set. INVALID_ARGUMENT names `where` and what the option takes, also if
// the option is set and keeps its value: a file with a wrong value is told either way. The verb has
// an option of this name.
Status SetUnlessSet(OptionValues& values, std::string_view name, const std::string& value,
                    std::string_view where);

}  // namespace tandem::apps
