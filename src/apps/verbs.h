// The verbs of the program, one file each.
#pragma once

#include <vector>

#include "apps/command.h"

namespace tandem::apps {

Command BenchCommand();
Command BuildCommand();
Command CompletionCommand();
Command ConvertCommand();
Command DoctorCommand();
Command InspectCommand();
Command PlanCommand();

// serve, run, eval, quantize: the verbs that need tokenizers and the server; absent in a build
// without them.
std::vector<Command> TextCommands();

}  // namespace tandem::apps
