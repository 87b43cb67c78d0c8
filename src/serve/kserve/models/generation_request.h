// The inputs of the models that generate, as text requests. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "serve/kserve/inference.h"
#include "serve/kserve/models/model_tensors.h"
#include "serve/text_request.h"

namespace tandem::serve::kserve {

// What a model does where the request does not say.
struct GenerationDefaultsOfModel {
  bool exclude_input = true;        // the prompt is not part of the answer
  bool add_special_tokens = true;   // around the prompt
  bool skip_special_tokens = true;  // from the answer's text
};

// A request's inputs and parameters, read.
struct GenerationRequest {
  std::vector<TextRequest> prompts;  // [batch]
  bool is_streamed = false;          // asked for; a model may refuse it
  bool exclude_input = true;
  bool return_log_probs = false;
  bool return_cache_stats = false;
  bool return_perf_metrics = false;
  bool return_num_input_tokens = false;
  bool return_num_output_tokens = false;
  bool stop = false;  // ends the running request of the same id; there are no prompts
};

// `kind`: kEnsemble, kBls or kTensorrtLlm. `request` has been checked and has `batch` entries.
Result<GenerationRequest> ReadGeneration(ModelKind kind, const InferRequest& request, int64_t batch,
                                         const GenerationDefaultsOfModel& defaults);

// An error of the engine or of the service, naming the model's input where it named theirs.
// `names`: of the request.
Status NamingInputs(ModelKind kind, const FieldNames& names, const Status& error);

}  // namespace tandem::serve::kserve
