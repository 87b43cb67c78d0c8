// ArrangedSource: the weights of a model as its ops want them, made while they are read. Of each
// head whose pairs are neighbours (RopeSpec::interleaved) the rows of queries and keys (or
// latents), and their norms, come with the first elements of all pairs before the second ones; a
// head whose rows are to be normed (ModelSpec::head_normed) is. Everything else comes as the source
// has it. The loader owns it and the source, which outlives it.
#pragma once

#include <vector>

#include "model/weight_source.h"
#include "tensor/buffer.h"

namespace tandem {

class ArrangedSource final : public WeightSource {
 public:
  explicit ArrangedSource(WeightSource& source) : source_(source) {}
  const ModelSpec& spec() const override { return source_.spec(); }
  Result<Tensor> Get(const WeightId& id) override;
  void Release() override;
  Status Finish() override { return source_.Finish(); }

 private:
  Result<Tensor> Copy(const Tensor& like);

  WeightSource& source_;
  std::vector<Buffer> copies_;
};

// UNIMPLEMENTED names a weight that cannot be arranged: rows that would leave their block of
// scales.
Status CheckArrangeable(const ModelSpec& spec);

}  // namespace tandem
