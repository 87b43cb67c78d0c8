// Changing how much is logged while the program runs. Safe on any thread.
#pragma once

#include "base/log.h"

namespace tandem {

// Lines of this level and above; the format stays.
void SetLogLevel(LogLevel level);

}  // namespace tandem
