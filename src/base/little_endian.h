// Numbers as in the file and wire formats: the lowest byte first. Pure functions.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace tandem {

static_assert(std::endian::native == std::endian::little);

// `bytes`: at least those of a T; they need no alignment.
template <typename T>
T LoadLittleEndian(const void* bytes) {
  static_assert(std::is_arithmetic_v<T>);
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
void AppendLittleEndian(T value, std::string& out) {
  static_assert(std::is_arithmetic_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

inline std::string LittleEndian64(uint64_t value) {
  std::string bytes;
  AppendLittleEndian(value, bytes);
  return bytes;
}

}  // namespace tandem
