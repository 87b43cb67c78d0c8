// Options of `vllm serve` that mean something else than any option here: they are refused with what
// to give instead, unless they ask for what is so anyway. Those that mean the same are other names
// of options. Constants and functions; any thread.
#pragma once

#include <span>

#include "base/options.h"

namespace tandem::apps {

std::span<const OptionSpec> VllmOptionRows();

// INVALID_ARGUMENT that names the options of this server.
Status CheckVllmOptions(const OptionValues& values);

}  // namespace tandem::apps
