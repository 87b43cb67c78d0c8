// Turns exceptions into errors. Errors are values in this project, but the standard library and
// Asio throw when the system gives no more memory, threads or files. A pure function; any thread.
#pragma once

#include <exception>

#include "base/status.h"

namespace tandem::apps {

// RESOURCE_EXHAUSTED or FAILED_PRECONDITION with a sentence that says what the system refused;
// INTERNAL for anything else.
Status StatusOfException(const std::exception_ptr& error);

}  // namespace tandem::apps
