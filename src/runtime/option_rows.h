// The engine's options: one row each, with name, range, meaning, setter and default (from
// EngineOptions itself). Constants and a pure function; any thread.
#pragma once

#include "base/bound_options.h"
#include "runtime/engine_options.h"

namespace tandem {

const BoundOptions<EngineOptions>& EngineOptionRows();
// On a GPU some options that are left out have other values.
EngineOptions EngineOptionsFrom(const OptionValues& values, bool on_gpu = false);

}  // namespace tandem
