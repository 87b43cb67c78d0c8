// Options of the old toolchain that have no effect here. They are accepted bare and with a value,
// as its releases took them, so that old command lines run unchanged; one log line names those
// given. Constants; any thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace tandem::apps {

// Of convert_checkpoint.py, quantize.py, trtllm-build and run.py, by verb.
std::span<const OptionSpec> LegacyConvertRows();
std::span<const OptionSpec> LegacyQuantizeRows();
std::span<const OptionSpec> LegacyBuildRows();
std::span<const OptionSpec> LegacyRunRows();
// Of tritonserver, and of llgtrt.
std::span<const OptionSpec> LegacyServeRows();

// Logs which of `rows` were given.
void NameLegacyOptions(const OptionValues& values, std::span<const OptionSpec> rows);

}  // namespace tandem::apps
