// The files that torch.save writes: a ZIP archive with a pickle that describes tensors and a file
// for the bytes of each storage. Only a dictionary of plain tensors is read, by interpreting the
// few opcodes that it takes; everything else is refused, and nothing in the file is ever run
// (docs/formats/torch.md). Tensors that share a storage share their bytes. Pure functions.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "tensor/tensor_file.h"

namespace tandem {

// Validates everything but the values of the tensors.
Result<std::shared_ptr<const TensorFile>> OpenTorchFile(const std::filesystem::path& path);

// The same for a file in memory; the tensors are views of it.
Result<std::map<std::string, Tensor>> ReadTorchFile(std::span<const std::byte> file);

}  // namespace tandem
