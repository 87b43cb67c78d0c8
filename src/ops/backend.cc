#include "ops/backend.h"

#include "base/check.h"

namespace tandem::ops {

StackedParts Stack(std::span<const LinearPart> parts) {
  TANDEM_CHECK(!parts.empty(), "a weight has at least one part");
  const LinearPart& first = parts.front();
  StackedParts stacked{.format = {first.weight.dtype, first.scheme}, .cols = first.weight.dim(1)};
  TANDEM_CHECK(stacked.format.element() == first.weight.dtype, "elements of the scheme's type");
  for (const LinearPart& part : parts) {
    TANDEM_CHECK(part.weight.dtype == first.weight.dtype && part.scheme == first.scheme &&
                     part.weight.dim(1) == stacked.cols,
                 "parts differ in kind");
    TANDEM_CHECK(part.scale.empty() == part.scheme.is_plain(), "scales where they are quantized");
    stacked.rows += part.weight.dim(0);
    stacked.has_bias = stacked.has_bias || !part.bias.empty();
  }
  return stacked;
}

}  // namespace tandem::ops
