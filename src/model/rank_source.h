// RankSource: the weights of one rank, cut from those of the whole model while they are read: of
// the layers of its stage, its share (of experts that are not split, its own). Products that are
// summed over the ranks have their bias on the first rank of the stage and zeros on the others; an
// expert that is not split keeps its own. OrderedPart says how weights in act-order are cut.
// The loader owns it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "model/sharding.h"
#include "model/weight_source.h"
#include "tensor/buffer.h"

namespace tandem {

class RankSource final : public WeightSource {
 public:
  // `spec`: RankSpec of the source's, which outlives this one.
  RankSource(WeightSource& whole, ModelSpec spec);
  // The same of a source of all layers that has the rank's share already (a dummy's).
  RankSource(std::unique_ptr<WeightSource> all_layers, ModelSpec spec);

  const ModelSpec& spec() const override { return spec_; }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override;
  Status Finish() override { return whole_.Finish(); }

 private:
  // Memory for a part that is no view of the whole, until Release.
  Result<Tensor> Copy(DType dtype, const Shape& shape);
  Result<Tensor> WidenedColumns(const WeightId& id);
  Result<Tensor> NeuronRows(const WeightId& id, WeightRole taker, const Tensor& whole);

  const std::unique_ptr<WeightSource> owned_;  // whole_, or null
  WeightSource& whole_;
  const ModelSpec spec_;
  const Sharding sharding_;  // between whole_ and this one
  const int64_t first_layer_;
  std::vector<Buffer> copies_;
};

}  // namespace tandem
