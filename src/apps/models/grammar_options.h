// The options of what a client's grammar may cost. Constants.
#pragma once

#include "base/bound_options.h"
#include "text/grammar.h"

namespace tandem::apps {

const BoundOptions<GrammarLimits>& GrammarRows();

}  // namespace tandem::apps
