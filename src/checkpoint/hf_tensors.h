// HfTensors: the stored tensors of a Hugging Face folder by name, from one file or from the shards
// that an index names. Open refuses missing shards and tensors with their file; a checksum is
// compared before the tensor's bytes are first used. Files stay mapped. Owned by the reader of the
// folder; one thread.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/layouts/layout.h"
#include "tensor/tensor_file.h"

namespace tandem {

class HfTensors final : public StoredTensors {
 public:
  // `optional_prefix`: where no name begins with it, all names get it; may be empty. The names of a
  // text model beside others are those that it has alone.
  static Result<HfTensors> Open(const std::filesystem::path& folder,
                                std::string_view optional_prefix);

  const Tensor* FindStored(const std::string& name) const override;
  std::string PlaceOf(const std::string& name) const override;
  // In order; valid until AddName.
  std::vector<std::string_view> Names() const;
  // Gives the tensor `stored`, which exists, a second name, unless another tensor has it.
  void AddName(const std::string& name, const std::string& stored);

  // Compares the checksum of a tensor, which exists. The first call reads its bytes.
  Status Verify(const std::string& name);
  // Of all tensors that a matrix NAME + ".weight" is packed in: NAME with any suffix.
  Status VerifyPacked(const std::string& name);

 private:
  struct Stored {
    Tensor tensor;
    const TensorFile* file = nullptr;
    std::string name = {};  // in the file
    bool verified = false;
  };
  explicit HfTensors(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Status OpenFiles();
  Status OpenSingleFile(const std::filesystem::path& path);
  Status OpenIndex(const char* index_name);
  Status AddShard(const char* index_name, const std::string& name,
                  std::map<std::string, const TensorFile*>& open);
  void SettlePrefix(std::string_view prefix);
  bool HoldsNamesWith(std::string_view prefix) const;  // as stored
  static Status Verify(Stored& stored);

  std::filesystem::path folder_;
  std::vector<std::shared_ptr<const TensorFile>> shards_;
  std::map<std::string, Stored> tensors_;
};

}  // namespace tandem
