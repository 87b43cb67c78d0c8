// RankFile: the tensors of one rank, in whatever form a file keeps them. Used by one thread.
#pragma once

#include <filesystem>

#include "checkpoint/stored/as_dtype.h"
#include "checkpoint/trtllm/fused_tensors.h"

namespace tandem {

// A tensor of a rank as it is in memory: ints of 4 bits as QuantScheme describes them, scales as
// fp32.
struct RankTensor {
  FusedTensor fused;
  QuantScheme scheme;
  Shape shape;
  DType dtype = DType::kF32;
};
RankTensor RankTensorOf(const ModelSpec& spec, const Sharding& sharding, const FusedTensor& fused);

class RankFile {
 public:
  virtual ~RankFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  // Checks that the tensor is stored in a form that Read knows, without reading its elements.
  // Errors name file and tensor.
  virtual Status Check(const RankTensor& tensor) = 0;
  // After all tensors were checked: refuses what else is stored and would change the results.
  virtual Status CheckOthers() const { return {}; }
  // A checked tensor: a view that lives as long as the file, or in `scratch`. Floating-point values
  // may be of another such type than the tensor's, scales may be a single one, for all.
  virtual Result<Tensor> Read(const RankTensor& tensor, ScratchBuffers& scratch) = 0;
  // Some of the rows of a checked matrix.
  virtual Result<Tensor> ReadRows(const RankTensor& tensor, int64_t first, int64_t count,
                                  ScratchBuffers& scratch) {
    TANDEM_ASSIGN_OR_RETURN(const Tensor all, Read(tensor, scratch));
    return all.RowRange(first, count);
  }
  // Checks the tensors that were never read.
  virtual Status Finish() { return {}; }

  // "rank0.safetensors: tensor "lm_head.weight"", for messages.
  std::string PlaceOf(const std::string& name) const {
    return path().string() + ": tensor \"" + name + "\"";
  }
};

}  // namespace tandem
