// ShardedSource: the files of all ranks, merged back into whole weights, so that a checkpoint or
// engine made for any number of ranks can be loaded on any other. Owns its files; used by one
// thread.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/trtllm/fused_tensors.h"
#include "checkpoint/trtllm/int4_pairs.h"

namespace tandem {

// The tensors of one rank by name. Views live as long as the file.
class RankFile {
 public:
  virtual ~RankFile() = default;
  virtual const std::filesystem::path& path() const = 0;
  // NOT_FOUND names file and tensor. Does not read its bytes yet.
  virtual Result<Tensor> Find(const std::string& name) = 0;
  // Checks the bytes of a tensor before their first use, if the format has checksums.
  virtual Status Verify(const std::string& /*name*/) { return {}; }
  // Checks the tensors that were never read.
  virtual Status Finish() { return {}; }
};

class ShardedSource final : public WeightSource {
 public:
  // One file per rank. Every tensor's presence, shape and type are checked here.
  static Result<std::unique_ptr<ShardedSource>> Create(ModelSpec spec, Sharding sharding,
                                                       std::vector<std::unique_ptr<RankFile>> ranks,
                                                       Int4Pairs pairs = Int4Pairs::kOfARow);

  const ModelSpec& spec() const override { return spec_; }
  const Sharding& sharding() const { return sharding_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override { scratch_.Clear(); }
  Status Finish() override;

 private:
  ShardedSource(ModelSpec spec, Sharding sharding, std::vector<std::unique_ptr<RankFile>> ranks,
                Int4Pairs pairs);
  Result<Tensor> Fused(const FusedTensor& tensor, int64_t rank) const;
  // "rank0.safetensors: tensor "lm_head.weight"", for messages.
  std::string Where(const FusedTensor& tensor, int64_t rank) const;
  // The rows of a role inside its fused tensor on a rank.
  Result<Tensor> Share(const WeightId& id, int64_t rank);
  Result<Tensor> Merge(const WeightId& id, Split split);

  ModelSpec spec_;
  Sharding sharding_;
  std::vector<std::unique_ptr<RankFile>> ranks_;
  const Int4Pairs pairs_;
  ScratchBuffers scratch_;
};

}  // namespace tandem
