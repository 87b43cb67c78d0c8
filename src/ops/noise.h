// The noise of sampling, as a whole and in parts, for kernels that compute it for many tokens: a
// key per (stream, seed, choice, position), a 32-bit hash per token, and floats made from the hash.
// Integer mixing and basic IEEE operations only, so that a GPU computes the same bits. Pure
// functions.
#pragma once

#include <cstdint>

#include "ops/portable_math.h"

namespace tandem::ops {

// The purpose of a number. Streams of one key are independent.
enum class NoiseStream : uint32_t {
  kToken = 0,     // the Gumbel noise of a draw, shared by draft and target
  kAccept = 1,    // ratio mode's acceptance test
  kResidual = 2,  // ratio mode's draw after the accepted drafts: the draft's own draw at that
                  // position used kToken, so it must not be used again there
  // The same two for drafts that a client sent: an engine with the same seed may have drawn them by
  // any of the streams above.
  kSentAccept = 3,
  kSentResidual = 4,
};

struct NoiseKey {
  uint32_t add = 0;
  uint32_t mix = 0;
};

// splitmix64's finaliser.
TANDEM_HOST_DEVICE constexpr uint64_t MixBits64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

TANDEM_HOST_DEVICE constexpr NoiseKey MakeNoiseKey(NoiseStream stream, uint64_t seed,
                                                   uint32_t choice, int32_t position) {
  uint64_t x = MixBits64(seed + 0x9e3779b97f4a7c15u);
  x = MixBits64(x ^ (uint64_t{choice} << 32 | static_cast<uint32_t>(stream)));
  x = MixBits64(x + static_cast<uint32_t>(position));
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

// 32 uniform bits of a token (lowbias32 with the key's second half mixed in). U: uint32_t or a
// vector.
template <typename U>
[[gnu::always_inline]] TANDEM_HOST_DEVICE constexpr U NoiseBits(NoiseKey key, U token) {
  U x = token * 0x9e3779b1u + key.add;
  x = (x ^ (x >> 16)) * 0x7feb352du + key.mix;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// Gumbel noise -log(-log(1 - v)) with v = (bits + 1/2) / 2^32: v near 0, the tail that decides an
// arg-max, keeps its full precision. In (-3.2, 22.9).
[[gnu::always_inline]] TANDEM_HOST_DEVICE inline float GumbelFromBits(uint32_t bits) {
  const uint32_t folded = bits < ~bits ? bits : ~bits;
  const float v = (static_cast<float>(folded) + 0.5f) * 0x1p-32f;  // distance to 0 or to 1
  float exponential;                                               // -log(1 - v)
  if (bits != folded) {
    exponential = -PortableLog(v);
  } else if (v < 0.29f) {
    exponential = -LogOfParts(0.0f, -v);
  } else {
    exponential = -LogOfParts(-1.0f, 1.0f - 2.0f * v);
  }
  return -PortableLog(exponential);
}

constexpr float kMaxGumbel = 22.9f;

// An upper bound of GumbelFromBits(bits), seldom more than 0.15 too large where that is above 2,
// for a few cheap operations: -log(-log(1 - v)) < -log v, and the bits of a float are a lower bound
// of its logarithm. Template over a float type and its unsigned integers.
template <typename F, typename U>
[[gnu::always_inline]] TANDEM_HOST_DEVICE inline F GumbelBound(U bits) {
  using B = FloatBits<F>;
  using I = typename B::Int;
  const F v = B::FromInt((I)(bits >> 1)) + 0.25f;  // in units of 2^-31
  const F exponent = B::FromInt(B::ToBits(v));     // (log2 of v, from below, + 127) * 2^23
  return (31.0f + 127.0f) * 0.693147181f + 1e-3f - exponent * (0.693147181f * 0x1p-23f);
}

// Uniform in (0, 1) with 53 bits: fine enough to invert the cumulative distribution of any
// vocabulary.
TANDEM_HOST_DEVICE inline double UniformDouble(NoiseStream stream, uint64_t seed, uint32_t choice,
                                               int32_t position) {
  const NoiseKey key = MakeNoiseKey(stream, seed, choice, position);
  const uint64_t high = NoiseBits<uint32_t>(key, 0);
  const uint64_t low = NoiseBits<uint32_t>(key, 1);
  return (static_cast<double>((high << 32 | low) >> 12) + 0.5) * 0x1p-52;
}

// Gumbel noise of a token at an absolute position: depends on its arguments alone, so that draft
// and target, any batch and any replay see the same. In (-4, 24).
TANDEM_HOST_DEVICE inline float GumbelNoise(uint64_t seed, uint32_t choice, int32_t position,
                                            int32_t token) {
  const NoiseKey key = MakeNoiseKey(NoiseStream::kToken, seed, choice, position);
  return GumbelFromBits(NoiseBits(key, static_cast<uint32_t>(token)));
}

// Uniform in (0, 1) from an independent stream of the same key (ratio mode's acceptance test).
TANDEM_HOST_DEVICE inline float UniformNoise(uint64_t seed, uint32_t choice, int32_t position,
                                             NoiseStream stream = NoiseStream::kAccept) {
  const NoiseKey key = MakeNoiseKey(stream, seed, choice, position);
  const uint32_t bits = NoiseBits<uint32_t>(key, 0);
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;  // 24 bits: exact
}

}  // namespace tandem::ops
