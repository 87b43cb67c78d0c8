#include "serve/kserve/inference.h"

#include <algorithm>

namespace tandem::serve::kserve {

const Tensor* InferRequest::Input(std::string_view input) const {
  const auto found = std::find_if(inputs.begin(), inputs.end(),
                                  [input](const Tensor& tensor) { return tensor.name == input; });
  return found == inputs.end() ? nullptr : &*found;
}

bool InferRequest::Names(std::string_view output) const {
  return std::any_of(outputs.begin(), outputs.end(),
                     [output](const RequestedOutput& asked) { return asked.name == output; });
}

bool InferRequest::Wants(std::string_view output) const { return outputs.empty() || Names(output); }

}  // namespace tandem::serve::kserve
