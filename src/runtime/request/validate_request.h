// ValidateRequest: all bounds of a request, checked before it is queued. A pure function;
// any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "runtime/request/request.h"

namespace tandem {

// The engine's limits on requests.
struct EngineLimits {
  int32_t max_seq_len = 0;      // prompt and output
  int32_t max_input_len = 0;    // prompt: less than asked for where a prompt may not be chunked
  int32_t max_choices = 0;      // of one request: at most the slots, and the queue's places
  int32_t max_queue_size = 0;   // sequences waiting; further ones are refused
  int32_t max_sent_drafts = 0;  // of one request
  int64_t vocab_size = 0;
  int64_t max_logits_bytes = 0;  // returned to one request, with those it sends
};

constexpr size_t kMaxLogitBias = 1024;  // tokens of one request

// Longest lists of a request, in values: one for each end id, two (token and number) for each logit
// bias, one for each banned token and one for each banned sequence. A device keeps room for them in
// every slot (16 KiB; the counts of a vocabulary of 128,000 tokens take 512 KiB), so that nothing
// is allocated while requests run. kMaxLogitBias takes half of them, the rest has the other half.
constexpr int32_t kMaxListValues = 4096;

// Most bytes of logits that a request holds: those that its choices get, and those it sends.
struct LogitsBytes {
  int64_t first = 0;  // choice 0, with the prompt's (also as log-probabilities) and the draft's
  int64_t other = 0;  // each of the others
};
// A pure function of a valid request.
LogitsBytes LogitsBytesOf(const Request& request, int64_t vocab);

// The drafts of a valid request that are verified: not those that could only follow its end.
int32_t NumSentDrafts(const Request& request);

// INVALID_ARGUMENT with the field, and a sentence that names it, its value and the allowed range.
Status ValidateRequest(const Request& request, const EngineLimits& limits);

}  // namespace tandem
