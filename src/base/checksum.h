// The checksum of the files that this program writes, and a hash of bytes. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tandem {

inline constexpr size_t kChecksumDigits = 32;

// XXH3-128 of the bytes in canonical (big-endian) order, as hex digits.
std::string Checksum(std::span<const std::byte> bytes);

// XXH3-64 of the bytes with a seed.
uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace tandem
