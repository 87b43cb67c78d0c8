// What of a configuration fits the model that it names. The functions read the model's
// configuration; one thread.
#pragma once

#include <filesystem>

#include "apps/lmi/config.h"
#include "base/options.h"
#include "base/status.h"

namespace tandem::apps {

// Lengths that come from keys, their defaults above all, are those of the largest models: a smaller
// model serves what it can. `values` have the model and the keys' options; those that `base` has
// set stay.
Status BoundLengths(const OptionValues& base, const LmiConfig& config, OptionValues& values);

// A version of another family than that of the model in `folder`: the container's own default,
// which copied files have, is dropped; another one is INVALID_ARGUMENT with the place where it
// stands.
Status SettleVersions(const std::filesystem::path& folder, LmiConfig& config);

}  // namespace tandem::apps
