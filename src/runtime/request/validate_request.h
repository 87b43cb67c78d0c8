// ValidateRequest: every bound a request has to keep, checked before it is queued. A pure function;
// any thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "runtime/request/request.h"

namespace tandem {

struct RequestLimits {
  int32_t max_seq_len = 0;
  int32_t max_input_len = 0;  // of the prompt alone
  int32_t max_batch_size = 0;
  int64_t vocab_size = 0;
};

// INVALID_ARGUMENT with a sentence naming the field, its value and what is allowed.
Status ValidateRequest(const Request& request, const RequestLimits& limits);

}  // namespace tandem
