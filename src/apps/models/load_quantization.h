// The options that quantize the target while it is opened, with the names of LMI's
// `option.quantize` and those beside it. Constants and plain values.
#pragma once

#include <optional>
#include <string>

#include "apps/models/calibrated_quantization.h"
#include "base/bound_options.h"

namespace tandem::apps {

struct LoadQuantization {
  std::optional<CalibratedQuantization::Scheme> scheme;  // none: as the target is stored
  CalibratedQuantization details;                        // all else
  std::string calib_dataset;

  // What is asked for; nothing without a scheme.
  std::optional<CalibratedQuantization> Asked() const;
};

const BoundOptions<LoadQuantization>& LoadQuantizationRows();

// Names in the log the options that are given and change nothing, with the reason: for another
// scheme than the one that is asked for, or without effect here.
void NameIdleQuantization(const OptionValues& values, const LoadQuantization& asked);

}  // namespace tandem::apps
