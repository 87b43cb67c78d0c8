// The engine's options: one row each, with name, range, meaning, setter and default (from
// EngineOptions itself). Constants and a pure function; any thread.
#pragma once

#include <span>

#include "base/options.h"
#include "runtime/engine_options.h"

namespace tandem {

std::span<const OptionSpec> EngineOptionRows();
EngineOptions EngineOptionsFrom(const OptionValues& values);

}  // namespace tandem
