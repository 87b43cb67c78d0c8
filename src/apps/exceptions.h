// What becomes of exceptions. Errors are values here; but where the system gives no more memory,
// threads or files, the standard library and Asio throw. A pure function; any thread.
#pragma once

#include <exception>

#include "base/status.h"

namespace tandem::apps {

// RESOURCE_EXHAUSTED or FAILED_PRECONDITION with a sentence for what the system refused; INTERNAL
// for anything else.
Status StatusOfException(const std::exception_ptr& error);

}  // namespace tandem::apps
