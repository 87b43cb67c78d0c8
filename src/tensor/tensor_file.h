// TensorFile: the named tensors of a memory-mapped file, whatever its format. Immutable and safe on
// any thread; the tensors are views into the mapping and live as long as the file. No alignment is
// promised: read through memcpy or ConvertElements (convert.h). Files that this program wrote hold
// a checksum of each tensor, which Verify compares; nothing is verified unasked.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace tandem {

class TensorFile {
 public:
  // `checksums`: of the tensors that have one, by their names.
  TensorFile(std::shared_ptr<MappedFile> file, std::map<std::string, Tensor> tensors,
             std::map<std::string, std::string> checksums = {})
      : file_(std::move(file)), tensors_(std::move(tensors)), checksums_(std::move(checksums)) {}

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::filesystem::path& path() const { return file_->path(); }
  // Whether each tensor has a checksum; other tools write none.
  bool has_checksums() const;
  // Reads the bytes of a tensor of this file. DATA_LOSS, which names file and tensor, unless they
  // are those that were written; a tensor without a checksum always passes.
  Status Verify(const std::string& name) const;

 private:
  std::shared_ptr<MappedFile> file_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> checksums_;
};

// Whether the name ends like that of a file that OpenTensorFile reads.
bool IsTensorFileName(const std::filesystem::path& path);

// Opens and validates the file; the end of its name tells the format: .safetensors, or .bin, .pt
// and .pth for what torch.save writes.
Result<std::shared_ptr<const TensorFile>> OpenTensorFile(const std::filesystem::path& path);

// `tensor "model.norm.weight"` for messages: control characters are replaced, long names are cut.
std::string QuotedTensorName(std::string_view name);

}  // namespace tandem
