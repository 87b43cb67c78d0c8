// The verbs that need text; built only when text/ and serve/ are.
#pragma once

#include "apps/cli/command.h"

namespace tandem::apps {

Command EvalCommand();
Command PartitionCommand();
Command RunCommand();
Command ServeCommand();

}  // namespace tandem::apps
