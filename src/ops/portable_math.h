// exp and log from basic IEEE operations only, in one fixed order, so that every compiler and
// device that does not contract a*b+c computes the same bits (libm's results differ between
// versions). A .cu file that calls them is compiled with --fmad=false.
// Templates over a float or a vector of floats: a lane of the vector version equals the scalar
// version. Everything is forced inline, so that a file compiled for a newer instruction set leaves
// no copy for others to call.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace tandem::ops {

// How a float-like type turns into its bits and back. Specialised for vectors where they are
// defined.
template <typename F>
struct FloatBits;

template <>
struct FloatBits<float> {
  using Int = int32_t;
  using UInt = uint32_t;
  [[gnu::always_inline]] TANDEM_HOST_DEVICE static Int ToBits(float value) {
    return __builtin_bit_cast(Int, value);
  }
  [[gnu::always_inline]] TANDEM_HOST_DEVICE static float FromBits(Int bits) {
    return __builtin_bit_cast(float, bits);
  }
  [[gnu::always_inline]] TANDEM_HOST_DEVICE static float FromInt(Int value) {
    return static_cast<float>(value);
  }
};

// e * ln 2 + log(1 + f), f in [sqrt(1/2) - 1, sqrt(2) - 1]: Cephes' logf polynomial, about 1 ulp.
template <typename F>
[[gnu::always_inline]] TANDEM_HOST_DEVICE inline F LogOfParts(F e, F f) {
  F p = f * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const F square = f * f;
  F tail = f * square * p;
  tail = tail +
         e * -2.12194440e-4f;  // ln 2 in two pieces: 0.693359375 has few bits, so e * it is exact
  tail = tail - square * 0.5f;
  return (f + tail) + e * 0.693359375f;
}

// Natural logarithm of a positive, normal, finite number.
template <typename F>
[[gnu::always_inline]] TANDEM_HOST_DEVICE inline F PortableLog(F x) {
  using B = FloatBits<F>;
  using I = typename B::Int;
  // The mantissa in [sqrt(1/2), sqrt(2)): subtracting sqrt(1/2)'s bits moves the boundary between
  // exponents there.
  const I offset = B::ToBits(x) - 0x3f3504f3;
  const I exponent = offset >> 23;
  const F mantissa = B::FromBits((offset & 0x007fffff) + 0x3f3504f3);
  return LogOfParts<F>(B::FromInt(exponent), mantissa - 1.0f);
}

// exp(x) for x in [-87, 88]; about 1 ulp. Outside, any finite or infinite value.
template <typename F>
[[gnu::always_inline]] TANDEM_HOST_DEVICE inline F PortableExp(F x) {
  using B = FloatBits<F>;
  using U = typename B::UInt;
  // Adding 1.5 * 2^23 rounds to the nearest integer, whose low bits then lie in the mantissa.
  const F shifted = x * 1.44269504f + 12582912.0f;
  const F n = shifted - 12582912.0f;
  const F r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const U power = ((U)B::ToBits(shifted) - 0x4b400000u + 127u) << 23;  // unsigned: it may wrap
  return p * B::FromBits((typename B::Int)power);
}

}  // namespace tandem::ops
