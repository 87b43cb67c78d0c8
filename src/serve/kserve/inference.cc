#include "serve/kserve/inference.h"

#include <algorithm>

namespace tandem::serve::kserve {

const Tensor* InferRequest::Input(std::string_view input) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [input](const Tensor& tensor) { return tensor.name == input; });
  return found == inputs.end() ? nullptr : &*found;
}

const RequestedOutput* InferRequest::Asked(std::string_view output) const {
  const auto found =
      std::find_if(outputs.begin(), outputs.end(),
                   [output](const RequestedOutput& asked) { return asked.name == output; });
  return found == outputs.end() ? nullptr : &*found;
}

bool InferRequest::Wants(std::string_view output) const { return outputs.empty() || Names(output); }

}  // namespace tandem::serve::kserve
