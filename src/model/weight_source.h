// WeightSource: a place to read the weights of one model from: a Hugging Face folder, a checkpoint,
// an engine folder, a dummy generator. Owned by who loads; not thread-safe.
#pragma once

#include "base/status.h"
#include "model/spec.h"
#include "model/weight_roles.h"
#include "tensor/tensor.h"

namespace tandem {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelSpec& spec() const = 0;
  // One of StoredWeights (or a tied head, which is the embedding), of WeightShape and WeightDType
  // and aligned for it; a view that lives until Release() or the end of the source. The source
  // checked what is stored, scales to be positive numbers. NOT_FOUND names the file and the missing
  // tensor.
  virtual Result<Tensor> Get(const WeightId& id) = 0;
  // The tensors got so far are done with: a source that had to convert or merge frees its copies.
  virtual void Release() {}
  // Called when all is loaded: a source with checksums checks what Get did not read.
  virtual Status Finish() { return {}; }
};

}  // namespace tandem
