// RankSource: the weights of one tensor-parallel rank, cut from those of the whole model while they
// are read. Products that are summed over the ranks have their bias on the first rank and zeros on
// the others. The loader owns it; the whole source outlives it.
#pragma once

#include <vector>

#include "model/sharding.h"
#include "model/weight_source.h"
#include "tensor/buffer.h"

namespace tandem {

class RankSource final : public WeightSource {
 public:
  // `spec`: RankSpec of the source's.
  RankSource(WeightSource& whole, ModelSpec spec)
      : whole_(whole), spec_(std::move(spec)), sharding_{.tp_size = spec_.place.ranks} {}

  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override;
  Status Finish() override { return whole_.Finish(); }

 private:
  WeightSource& whole_;
  const ModelSpec spec_;
  const Sharding sharding_;
  std::vector<Buffer> copies_;
};

}  // namespace tandem
