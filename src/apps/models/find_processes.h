// The processes of a session that is opened: the others are found, and the options say then which
// ranks this one has. Used by the thread that opens the session.
#pragma once

#include <memory>

#include "apps/models/session.h"

namespace tandem::apps {

// Null where the process is alone. Without `joins` (for a plan) it waits for nobody, and settles
// the ranks of all, or on GPUs of the first process. Errors name the option.
Result<std::shared_ptr<ProcessGroup>> FindProcesses(const OptionValues& values, bool joins,
                                                    SessionOptions& options,
                                                    SharedResources& shared);

}  // namespace tandem::apps
