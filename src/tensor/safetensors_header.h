// The JSON header of a safetensors file, read event by event: no document is built, so duplicate
// names are detected and memory stays in proportion to the tensors. Pure functions, internal to
// tensor/.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

// One entry as the header states it; offsets are not checked against the file yet.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0;  // bytes from the start of the data section
  uint64_t end = 0;
};

// Key of the metadata with the checksum of a tensor, whose name follows.
inline constexpr std::string_view kChecksumKey = "xxh3_128:";

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the header's order, names unique
  std::map<std::string, std::string> metadata;
};

// Each entry is complete: its type is known, and its size does not overflow and matches its
// offsets.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json);

}  // namespace tandem
