// CheckpointRank: a rank's safetensors file of a checkpoint, by whichever tool it was written:
// names, shapes and orders differ with quant_algo and with the tool. docs/formats/checkpoint.md
// lists the forms. Used by one thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/trtllm/kernel_order.h"
#include "checkpoint/trtllm/rank_file.h"
#include "tensor/safetensors.h"

namespace tandem {

class CheckpointRank final : public RankFile {
 public:
  static Result<std::unique_ptr<CheckpointRank>> Open(const std::filesystem::path& path);

  // The scheme under which a weight is stored that config.json describes by `described`, of which
  // `plain` would be the shape if it were not quantized.
  Result<QuantScheme> SchemeOf(const FusedTensor& weight, const QuantScheme& described,
                               const Shape& plain) const;
  // Whether the other rank has the same scales for a weight, bit for bit.
  bool HasScalesOf(const CheckpointRank& other, const FusedTensor& weight) const;

  // Adds the elements of the checked weights that are in the order of kernels.
  void CountBitsOfKernels(BitCounts& counts) const;
  // To be called before such a weight is read.
  void SetKernelOrder(KernelOrder order) { kernel_order_ = order; }

  const std::filesystem::path& path() const override { return file_->path(); }
  Status Check(const RankTensor& tensor) override;
  Status CheckOthers() const override;
  Result<Tensor> Read(const RankTensor& tensor, ScratchBuffers& scratch) override;
  Result<Tensor> ReadRows(const RankTensor& tensor, int64_t first, int64_t count,
                          ScratchBuffers& scratch) override;

 private:
  explicit CheckpointRank(std::shared_ptr<const SafetensorsFile> file) : file_(std::move(file)) {}

  enum class Form : uint8_t { kAsInMemory, kPairsOfRows, kKernels };
  struct Stored {
    Tensor tensor;
    std::string name;
  };
  const Tensor* FindOrNull(const std::string& name) const;
  // The first of the names that is stored; NOT_FOUND names the first.
  Result<Stored> Find(std::initializer_list<std::string> names) const;
  // Compares the checksum of a stored tensor before its elements are first used.
  Status Verify(const std::string& name);
  // One positive number.
  Result<float> ReadNumber(const std::string& name) const;
  Form FormOf(const RankTensor& tensor) const;
  Status CheckElements(const RankTensor& tensor);
  Result<Stored> FindPart(const RankTensor& tensor) const;
  Result<Tensor> ReadScales(const RankTensor& tensor, const Stored& stored,
                            ScratchBuffers& scratch) const;
  Result<Tensor> ReadZeros(const RankTensor& tensor, const Stored& stored,
                           ScratchBuffers& scratch) const;
  // fp32 of the tensor's shape, which the stored values may be the transpose of.
  Result<Tensor> BlocksOf(const RankTensor& tensor, const Stored& stored,
                          ScratchBuffers& scratch) const;

  std::shared_ptr<const SafetensorsFile> file_;
  std::set<std::string> known_;     // names that were checked
  std::set<std::string> verified_;  // names whose checksums were compared
  std::vector<KernelMatrix> of_kernels_;
  KernelOrder kernel_order_ = KernelOrder::kInterleaved;
};

}  // namespace tandem
