// The engine's options: each is one row with its name, range, meaning, setter and (from
// EngineOptions itself) default. Constants and a pure function; any thread.
#pragma once

#include "base/bound_options.h"
#include "runtime/engine_options.h"

namespace tandem {

const BoundOptions<EngineOptions>& EngineOptionRows();
EngineOptions EngineOptionsFrom(const OptionValues& values);

}  // namespace tandem
