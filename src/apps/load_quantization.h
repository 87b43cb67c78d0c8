// The options that quantize the target while it is opened, with the names of LMI's
// `option.quantize` and those beside it. Constants and plain values.
#pragma once

#include <optional>
#include <string>

#include "apps/lmi_quantization.h"
#include "base/bound_options.h"

namespace tandem::apps {

struct LoadQuantization {
  std::optional<LmiQuantization::Scheme> scheme;  // none: as the target is stored
  LmiQuantization details;                        // all else
  std::string calib_dataset;

  // What is asked for; nothing without a scheme.
  std::optional<LmiQuantization> Asked() const;
};

const BoundOptions<LoadQuantization>& LoadQuantizationRows();

// Gives options that are not set the values that were asked for elsewhere, of which `where` tells;
// not those without an effect.
Status GiveQuantization(const LmiQuantization& asked, OptionValues& values, std::string_view where);

// Names in the log the options that are given and change nothing, with the reason: for another
// scheme than the one that is asked for, or without effect here.
void NameIdleQuantization(const OptionValues& values, const LoadQuantization& asked);

}  // namespace tandem::apps
