#include "ops/noise.h"

#include "ops/sampling.h"

namespace tandem::ops {

float GumbelNoise(uint64_t seed, uint32_t choice, int32_t position, int32_t token) {
  const NoiseKey key = MakeNoiseKey(NoiseStream::kToken, seed, choice, position);
  return GumbelFromBits(NoiseBits(key, static_cast<uint32_t>(token)));
}

float UniformNoise(uint64_t seed, uint32_t choice, int32_t position) {
  const NoiseKey key = MakeNoiseKey(NoiseStream::kAccept, seed, choice, position);
  const uint32_t bits = NoiseBits<uint32_t>(key, 0);
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1p-23f;  // 24 bits: exact
}

}  // namespace tandem::ops
