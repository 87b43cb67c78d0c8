// Reads the pickle of a file that torch.save wrote: a stack machine that interprets the opcodes of
// a dictionary of plain tensors and refuses every other one by name. It calls nothing and imports
// nothing: the names in the pickle select rows of a table. Memory is bounded by a constant times
// the size of the pickle. Pure functions, internal to tensor/.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

// One tensor as the pickle states it: dense, row-major, and inside its storage. The texts are views
// of the pickle.
struct PickledTensor {
  std::string_view name;  // UTF-8
  DType dtype = DType::kF32;
  Shape shape;
  std::string_view storage;    // name of the storage in the archive, below data/
  uint64_t storage_bytes = 0;  // what the storage must have; not checked against the archive yet
  uint64_t begin = 0;          // bytes from the start of the storage
};

// The tensors in the order of the dictionary, names unique.
Result<std::vector<PickledTensor>> ReadTorchPickle(std::string_view pickle);

}  // namespace tandem
