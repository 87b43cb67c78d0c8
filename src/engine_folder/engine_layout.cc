#include "engine_folder/engine_layout.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tandem::engine_layout {

std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

uint64_t ReadLittleEndian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

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

}  // namespace tandem::engine_layout
