// The verbs that need text; built only when text/ and serve/ are.
#pragma once

#include "apps/command.h"

namespace tandem::apps {

Command EvalCommand();
Command PartitionCommand();
Command RunCommand();
Command ServeCommand();

}  // namespace tandem::apps
