// The protocol's log settings, which can be read and changed while the server runs. Safe on any
// thread.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// Names and values: log_file, log_info, log_warning, log_error, log_verbose_level, log_format.
std::vector<std::pair<std::string_view, Parameter>> LogSettings();

// INVALID_ARGUMENT with the setting as field for an unknown one or a value of the wrong type;
// UNIMPLEMENTED for a log file. Nothing has changed then.
Status SetLogSettings(const Parameters& settings);

}  // namespace tandem::serve::kserve
