// Responses of the text-level models: the values of their output tensors, and their JSON text. A
// ResponseBuilder belongs to one call; the rest are pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/generate_call.h"
#include "serve/model_registry.h"

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

inline constexpr std::string_view kModelVersion = "1";  // of every model

// `id`: the call's own, or empty. Keys are in alphabetical order, as Triton writes them.
std::string FormatResponse(const Model& model, const std::string& id, const Response& response);
std::string FormatModel(const Model& model);
// Name and version of the server that defines this protocol: clients use them to decide which
// features they may use.
std::string FormatServer();

}  // namespace tandem::serve::kserve
