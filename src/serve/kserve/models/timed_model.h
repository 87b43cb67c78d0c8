// TimedModel: a model that answers a request with a series of responses, each of them some time
// after the one before it. One thread of the model keeps the time for all of its requests.
#pragma once

#include <cstdint>
#include <functional>

#include "serve/kserve/repository.h"

namespace tandem::serve::kserve {

// The answer to one request. Its functions are called on one thread at a time.
struct Series {
  int64_t count = 1;  // responses
  std::function<InferResponse(int64_t index)> response;
  std::function<Nanos(int64_t index)> delay;  // before each response; empty: none
  // The last response is marked as the final one. Otherwise a final one without outputs follows it.
  bool is_last_final = true;
  Status failure;  // unless it is ok, the series ends with this error
};

// Must not block.
using Answer = std::function<Result<Series>(const InferRequest&)>;

InferModelPtr MakeTimedModel(const inference::ModelConfig& config, Answer answer);

}  // namespace tandem::serve::kserve
