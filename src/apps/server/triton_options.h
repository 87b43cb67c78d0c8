// Options of tritonserver that are spelled or divided in another way here: those of its log, and
// those that name what this server has once for all its ports. Constants and functions; any thread.
#pragma once

#include <span>
#include <string>

#include "base/options.h"

namespace tandem::apps {

std::span<const OptionSpec> TritonOptionRows();

// Sets the log's level as the log flags say.
Status SetTritonLog(const OptionValues& values);

// INVALID_ARGUMENT, naming what to use instead, for what would not be true: other addresses than
// `host`, no HTTP, restrictions of single routes.
Status CheckTritonOptions(const OptionValues& values, const std::string& host);

}  // namespace tandem::apps
