// GenerateCall: one call of a client, independent of the protocol: the choices of all its prompts
// as one list of answers. A streamed call reports each event; any other collects the answers and
// reports when each is complete. It is polled after each `wake`. Owned by the front end's reply,
// one thread at a time; destroying it cancels what still runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/call_news.h"
#include "serve/model_registry.h"
#include "serve/text_request.h"
#include "serve/text_stream.h"

namespace tandem::serve {

// Sums over the prompts and choices of a call.
struct CallUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t accepted_tokens = 0;  // accepted draft tokens
  int64_t rejected_tokens = 0;
  uint64_t seed = 0;  // of the first prompt
};

class GenerateCall {
 public:
  // `prompts` (at least one) differ only in the prompt; the call is streamed if they ask for it. A
  // refusal is the first news. `wake` as in GenerateService::Start.
  GenerateCall(ModelPtr model, std::vector<TextRequest> prompts, const std::function<void()>& wake);
  ~GenerateCall();
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Never blocks. kEvent is news of one answer: of a streamed call, its next part; of any other,
  // that it is complete. It fills `event`, whose choice is the answer's index; so does kFailed.
  CallNews Next(TextEvent& event);

  // From the first event on: the choices of the first prompt, then those of the second, and so on.
  // A streamed call does not keep the text that it has reported, only how its answers end. Pieces
  // are kept if log-probabilities or tokens were asked for. All answers to a prompt have it as soon
  // as an event brought it.
  const std::vector<TextChoice>& answers() const { return answers_; }
  CallUsage usage() const;  // so far
  // Model, numbers of tokens and time to the first, for the log: nothing of prompt or answer.
  std::string Summary() const;
  bool is_streamed() const { return is_streamed_; }
  const Model& model() const { return *model_; }

 private:
  bool TakeEvent(TextEvent& event);

  const ModelPtr model_;  // outlives the streams
  const bool is_streamed_;
  const bool keeps_pieces_;
  const int64_t num_choices_;                         // of each prompt, as asked
  std::vector<std::unique_ptr<TextStream>> streams_;  // of the prompts
  std::vector<TextChoice> answers_;
};

}  // namespace tandem::serve
