// The body of `/v1/run` → a text request. A pure function; errors are INVALID_ARGUMENT "field:
// sentence".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/text_request.h"

namespace tandem::serve::llgtrt {

struct RunCall {
  TextRequest text;                  // streamed, under the grammar
  std::string model;                 // empty: the default
  std::vector<std::string> ignored;  // members without effect
};

Result<RunCall> ParseRun(std::string_view body);

}  // namespace tandem::serve::llgtrt
