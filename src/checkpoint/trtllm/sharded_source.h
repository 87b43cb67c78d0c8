// ShardedSource: the files of all ranks and stages, merged back into whole weights, so that a
// checkpoint or engine made for any number of ranks can be loaded on any other. Owns its files;
// used by one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/trtllm/rank_file.h"

namespace tandem {

class ShardedSource final : public WeightSource {
 public:
  // One file per rank of each stage. Every tensor's presence, shape and type are checked here.
  static Result<std::unique_ptr<ShardedSource>> Create(
      ModelSpec spec, Sharding sharding, std::vector<std::unique_ptr<RankFile>> files);

  const ModelSpec& spec() const override { return spec_; }
  const Sharding& sharding() const { return sharding_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override { scratch_.Clear(); }
  Status Finish() override;

 private:
  ShardedSource(ModelSpec spec, Sharding sharding, std::vector<std::unique_ptr<RankFile>> files);
  RankFile& FileOf(const FusedTensor& tensor, int64_t rank) const;
  // A tensor with other values than elements, checked.
  Result<Tensor> Values(const RankTensor& tensor, RankFile& file);
  // The rows of a role inside its fused tensor on a rank.
  Result<Tensor> Share(const WeightId& id, int64_t rank);
  Result<Tensor> Merge(const WeightId& id, Split split);
  // What ranks repeat: the first one's, or of scales of inputs, where they differ, the largest.
  Result<Tensor> Common(const WeightId& id);
  // That two ranks should have the same values and have not.
  Status DifferFrom(const WeightId& id, int64_t rank, int64_t first) const;

  ModelSpec spec_;
  Sharding sharding_;
  std::vector<std::unique_ptr<RankFile>> files_;
  ScratchBuffers scratch_;
};

}  // namespace tandem
