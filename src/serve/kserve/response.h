// Responses of the text-level models: the values of their output tensors, before a transport writes
// them as JSON or protobuf. A ResponseBuilder belongs to one call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/generate_call.h"

namespace tandem::serve::kserve {

// One response: for one token of one answer, or for all answers of the call.
struct Response {
  std::vector<std::string> texts;       // [answers]
  std::vector<float> cum_log_probs;     // [answers]
  std::vector<float> output_log_probs;  // [tokens] of the answers, one after the other
  int32_t sequence_index = -1;          // index of a stream's answer if there are several, else -1
};

class ResponseBuilder {
 public:
  // Without `return_log_probs` the log-probabilities are zeros. `prompt` is put before each
  // collected answer.
  ResponseBuilder(bool return_log_probs, std::string prompt);

  // Appends the responses for an event of a streamed call: one per token, and one for an answer
  // that ends without any.
  void AddEvent(const GenerateCall& call, TextEvent event, std::vector<Response>& responses);
  // The only response of a call that collected its answers.
  Response Whole(const GenerateCall& call) const;

 private:
  // Of one answer of a stream.
  struct Shown {
    float cum_log_prob = 0.0f;
    bool any = false;
  };

  float LogProb(const TokenPiece& piece) const;

  bool return_log_probs_;
  std::string prompt_;
  std::vector<Shown> shown_;  // [answers]
};

}  // namespace tandem::serve::kserve
