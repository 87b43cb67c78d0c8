// The verbs that speak text; built only where text/ and serve/ are.
#pragma once

#include "apps/command.h"

namespace tandem::apps {

Command EvalCommand();
Command RunCommand();
Command ServeCommand();

}  // namespace tandem::apps
