#include "serve/kserve/response.h"

#include <utility>

namespace tandem::serve::kserve {

ResponseBuilder::ResponseBuilder(bool return_log_probs, std::string prompt)
    : return_log_probs_(return_log_probs), prompt_(std::move(prompt)) {}

float ResponseBuilder::LogProb(const TokenPiece& piece) const {
  return return_log_probs_ && piece.token >= 0 ? piece.logprob : 0.0f;
}

void ResponseBuilder::AddEvent(const GenerateCall& call, TextEvent event,
                               std::vector<Response>& responses) {
  shown_.resize(call.answers().size());
  Shown& shown = shown_[static_cast<size_t>(event.choice)];
  if (event.pieces.empty() && !shown.any) event.pieces.emplace_back().token = -1;
  for (TokenPiece& piece : event.pieces) {
    shown.cum_log_prob += LogProb(piece);
    shown.any = true;
    Response& response = responses.emplace_back();
    response.cum_log_probs = {shown.cum_log_prob};
    if (piece.token >= 0) response.output_log_probs = {LogProb(piece)};
    response.texts.push_back(std::move(piece.text));
    if (shown_.size() > 1) response.sequence_index = event.choice;
  }
}

Response ResponseBuilder::Whole(const GenerateCall& call) const {
  Response response;
  std::vector<float>& log_probs = response.output_log_probs;
  for (const TextChoice& answer : call.answers()) {
    float sum = 0.0f;
    for (const TokenPiece& piece : answer.pieces) {
      if (piece.token >= 0) log_probs.push_back(LogProb(piece));
      sum += LogProb(piece);
    }
    // Pieces are kept only if the client asked for them.
    if (!return_log_probs_)
      log_probs.resize(log_probs.size() + static_cast<size_t>(answer.num_tokens));
    response.cum_log_probs.push_back(sum);
    response.texts.push_back(prompt_ + answer.text);
  }
  return response;
}

}  // namespace tandem::serve::kserve
