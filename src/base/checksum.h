// The checksum of the files that this program writes. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tandem {

inline constexpr size_t kChecksumDigits = 32;

// XXH3-128 of the bytes in canonical (big-endian) order, as hex digits.
std::string Checksum(std::span<const std::byte> bytes);

}  // namespace tandem
