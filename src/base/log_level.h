// Changing what is logged, and how, while the program runs. Safe on any thread unless it says
// otherwise.
#pragma once

#include "base/log.h"

namespace tandem {

// Lines of this level and above; the format stays.
void SetLogLevel(LogLevel level);

// To call after stderr became another file: lines have colours only on a terminal. While no other
// thread logs.
void ResetLogColor();

}  // namespace tandem
