#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tandem {

std::string Checksum(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char digit : canonical.digest) {
    text += kHex[digit >> 4];
    text += kHex[digit & 0xf];
  }
  return text;
}

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace tandem
