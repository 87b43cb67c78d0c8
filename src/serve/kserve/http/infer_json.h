// The body of an inference over HTTP: a JSON object, then the bytes of the tensors that it does not
// hold itself. Pure functions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/kserve/inference.h"

namespace tandem::serve::kserve {

// `json_bytes`: the length of the JSON at the body's beginning, as the client's header gives it;
// without one the whole body is JSON. Tensors are not checked beyond their bytes, and those in
// shared memory are not read.
Result<InferRequest> ParseInfer(std::string_view body, std::optional<size_t> json_bytes);

struct InferBody {
  std::string bytes;
  std::optional<size_t> json_bytes;  // with binary tensors: the length of the JSON before them
};
// Outputs are binary where the request asked for it, and without data where it is in shared memory.
InferBody FormatInfer(const InferRequest& request, const InferResponse& response);

}  // namespace tandem::serve::kserve
