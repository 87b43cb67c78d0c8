// The safetensors format: a memory-mapped, fully validated reader and a streaming writer.
// Validation: header length against the file and 100,000,000 bytes; checked multiplications; every
// tensor inside the data section, without holes or overlaps; no duplicate names; a clear DATA_LOSS or
// INVALID_ARGUMENT names file, tensor and fault. Readers are immutable and safe on any thread; the
// tensors are views into the mapping and live as long as the reader.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

class SafetensorsFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> Open(const std::filesystem::path& path);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::filesystem::path& path() const { return file_->path(); }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes the tensors in the given order under `path`, atomically.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
Status WriteSafetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem
