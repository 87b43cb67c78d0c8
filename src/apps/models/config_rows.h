// The options of ConfigOptions, for every verb that opens Hugging Face folders.
#pragma once

#include "base/bound_options.h"
#include "model/config_options.h"

namespace tandem::apps {

const BoundOptions<ConfigOptions>& ConfigOptionRows();

}  // namespace tandem::apps
