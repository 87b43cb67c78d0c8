// The engine's rows of the option table, and how values become EngineOptions. Constants and a pure
// function; any thread.
#pragma once

#include <span>

#include "base/options.h"
#include "runtime/engine_options.h"

namespace tandem {

std::span<const OptionSpec> EngineOptionRows();
EngineOptions EngineOptionsFrom(const OptionValues& values);

}  // namespace tandem
