// ValidateRequest: all bounds of a request, checked before it is queued. A pure function;
// any thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "runtime/request/request.h"

namespace tandem {

// The engine's limits on requests.
struct AdmissionLimits {
  int32_t max_seq_len = 0;
  int32_t max_input_len = 0;  // of the prompt alone
  int32_t max_batch_size = 0;
  int64_t vocab_size = 0;
};

// Longest lists of a request, in values: one for each end id, two (token and number) for each logit
// bias, one for each banned token and one for each banned sequence. A device keeps room for them in
// every slot (16 KiB; the counts of a vocabulary of 128,000 tokens take 512 KiB), so that nothing
// is allocated while requests run. 1,024 biases leave the same number of values for the rest.
constexpr int32_t kMaxListValues = 4096;

// INVALID_ARGUMENT with the field, and a sentence that names it, its value and the allowed range.
Status ValidateRequest(const Request& request, const AdmissionLimits& limits);

}  // namespace tandem
