// The safetensors format: a memory-mapped, fully validated reader and a streaming writer.
// Validation: header length against the file and 100,000,000 bytes; checked multiplications; every
// tensor inside the data section, without holes or overlaps; no duplicate names; a clear DATA_LOSS
// or INVALID_ARGUMENT names file, tensor and fault. The writer adds a checksum of each tensor to
// the metadata, which other readers ignore (docs/formats/checkpoint.md). Readers are immutable and
// safe on any thread; the tensors are views into the mapping and live as long as the reader
// (TensorFile).
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "tensor/tensor.h"
#include "tensor/tensor_file.h"

namespace tandem {

class SafetensorsFile final : public TensorFile {
 public:
  static Result<std::shared_ptr<const SafetensorsFile>> Open(const std::filesystem::path& path);

  // Without the checksums.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  SafetensorsFile(TensorFile file, std::map<std::string, std::string> metadata)
      : TensorFile(std::move(file)), metadata_(std::move(metadata)) {}
  std::map<std::string, std::string> metadata_;
};

// Writes tensors one at a time, in the order given to Create; needs memory for one tensor. The file
// appears under its name at Commit, whole, or not at all. Used by one thread.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};
class SafetensorsWriter {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> Create(
      const std::filesystem::path& path, std::vector<TensorInfo> tensors,
      const std::map<std::string, std::string>& metadata = {});
  // The next tensor; dtype and shape must be as announced.
  Status Append(const Tensor& tensor);
  Status Commit();

 private:
  SafetensorsWriter(std::unique_ptr<AtomicFileWriter> file, std::vector<TensorInfo> tensors,
                    std::map<std::string, std::string> metadata)
      : file_(std::move(file)), tensors_(std::move(tensors)), metadata_(std::move(metadata)) {}
  std::unique_ptr<AtomicFileWriter> file_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
  size_t next_ = 0;
};

// Writes the tensors in the given order under `path`, atomically.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
Status WriteSafetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem
