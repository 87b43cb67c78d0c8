#include "runtime/speculation/output_length.h"

#include <algorithm>

namespace tandem {
namespace {

// An ended sequence moves the mean length by this share.
constexpr double kLengthStep = 1.0 / 16;

}  // namespace

void OutputLength::Observe(int32_t tokens) { mean_ += kLengthStep * (tokens - mean_); }

double OutputLength::Expect(int32_t at_most) const {
  return std::max(std::min(mean_, static_cast<double>(at_most)), 1.0);
}

}  // namespace tandem
