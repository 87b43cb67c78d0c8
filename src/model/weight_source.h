// WeightSource: a place to read the weights of one model from: a Hugging Face folder, a checkpoint,
// an engine folder, a dummy generator. The loader owns it. One thread.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "model/spec.h"
#include "model/weight_roles.h"
#include "tensor/tensor.h"

namespace tandem::ops {
struct LinearPart;
}

namespace tandem {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelSpec& spec() const = 0;
  // One of StoredWeights (or a tied head, which is the embedding), of WeightShape and WeightDType
  // and aligned for it; a view that lives until Release() or the end of the source. The source has
  // checked the stored data; scales are positive numbers. NOT_FOUND names the file and the missing
  // tensor.
  virtual Result<Tensor> Get(const WeightId& id) = 0;
  // The caller no longer needs tensors from Get. A source that made copies, to convert or to merge,
  // frees them.
  virtual void Release() {}
  // Called when everything is loaded: a source with checksums then checks the parts that Get did
  // not read.
  virtual Status Finish() { return {}; }
};

// The elements of a tensor, widened. Releases the source.
Result<std::vector<float>> ReadFloats(WeightSource& source, const WeightId& id);

// All parts of a product's weight; they live until the source's Release.
Result<ops::LinearPart> ReadPart(WeightSource& source, WeightRole role, int64_t layer,
                                 int64_t expert);

// The input scale of products that are computed, or stored, as one: the largest of the roles',
// whose range holds the inputs of each. `of` says of which layer and expert.
Result<float> LargestInputScale(WeightSource& source, std::span<const WeightRole> roles,
                                const WeightId& of);

// A vector (the part `of`) that products with the same inputs have in common: factors or the order
// of their inputs. UNIMPLEMENTED where the roles' vectors differ.
Result<Tensor> CommonVector(WeightSource& source, std::span<const WeightRole> roles,
                            const WeightId& of);

}  // namespace tandem
