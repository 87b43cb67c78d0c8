#include "runtime/speculation/step_overhead.h"

#include <algorithm>

namespace tandem {
namespace {

// Share of the difference by which a step moves the estimate, and the largest difference that
// counts, as a share of the passes.
constexpr double kStep = 1.0 / 16;
constexpr double kLargest = 1.0 / 4;

}  // namespace

void StepOverhead::Observe(double rest, double passes) {
  const double difference = std::max(rest, 0.0) - seconds_;
  seconds_ += kStep * std::clamp(difference, -kLargest * passes, kLargest * passes);
}

}  // namespace tandem
