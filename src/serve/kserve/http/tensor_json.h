// Elements of tensors and parameters as JSON. Pure functions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "serve/json.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/tensor.h"

namespace tandem::serve::kserve {

// Appends one element. INVALID_ARGUMENT, in the protocol's words, when it is not of the tensor's
// type.
Status AppendElement(const Json& value, Tensor& tensor);

// Writes the elements one after the other, without brackets.
void WriteElements(const Tensor& tensor, JsonWriter& writer);

// A string, a bool or a number; INVALID_ARGUMENT for another kind.
Status ReadParameter(std::string_view name, const Json& value, Parameters& parameters);
// All members of an object.
Result<Parameters> ReadParameters(const Json& object);
// Those of the member `parameters`; none if it is not there.
Result<Parameters> ParametersOf(const Json& object);
void WriteParameter(const Parameter& value, JsonWriter& writer);

}  // namespace tandem::serve::kserve
