// Rounding to fp8 (e4m3) written in double precision: the reference for kernels. Test code, a pure
// function.
#pragma once

#include <algorithm>
#include <cmath>

namespace tandem::ops {

// To the nearest e4m3 number, ties to even; saturates at the largest.
inline double RoundToFp8(double value) {
  const double magnitude = std::abs(value);
  if (magnitude == 0.0) return value;
  const double step = std::ldexp(1.0, std::max(std::ilogb(magnitude), -6) - 3);
  return std::copysign(std::min(std::nearbyint(magnitude / step) * step, 448.0), value);
}

}  // namespace tandem::ops
