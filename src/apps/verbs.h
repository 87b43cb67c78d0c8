// The verbs of the program, one file each. Constants made at first use.
#pragma once

#include "apps/command.h"

namespace tandem::apps {

Command CompletionCommand();

}  // namespace tandem::apps
