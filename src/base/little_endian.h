// 64-bit numbers as in the file formats: the lowest byte first. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tandem {

inline std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

// `bytes`: at least 8.
inline uint64_t ReadLittleEndian64(const std::byte* bytes) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

}  // namespace tandem
