// The verbs of the program, one file each.
#pragma once

#include <vector>

#include "apps/cli/command.h"

namespace tandem::apps {

Command BenchCommand();
Command BuildCommand();
Command CompletionCommand();
Command ConvertCommand();
Command DoctorCommand();
Command InspectCommand();
Command PlanCommand();
Command QuantizeCommand();

// serve, run, eval: the verbs that need tokenizers and the server; absent in a build
// without them.
std::vector<Command> TextCommands();

}  // namespace tandem::apps
