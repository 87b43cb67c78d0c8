#include "serve/generate_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tandem::serve {

GenerateCall::GenerateCall(ModelPtr model, std::vector<TextRequest> prompts,
                           const std::function<void()>& wake)
    : model_(std::move(model)),
      is_streamed_(prompts.at(0).stream),
      keeps_pieces_(prompts.at(0).num_top_logprobs >= 0 || !prompts.at(0).wants_text ||
                    prompts.at(0).return_generation_logits),
      num_choices_(prompts.at(0).num_choices) {
  for (TextRequest& prompt : prompts) {
    streams_.push_back(model_->service->Start(std::move(prompt), wake));
  }
}

GenerateCall::~GenerateCall() = default;

// The next event of any prompt; its choice becomes the answer's index.
bool GenerateCall::TakeEvent(TextEvent& event) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    event = TextEvent();
    if (!streams_[i]->TryNext(event)) continue;
    if (!event.error.ok()) return true;
    // There are events, so the number of choices was accepted.
    const auto num_choices = static_cast<size_t>(num_choices_);
    answers_.resize(streams_.size() * num_choices);
    event.choice += static_cast<int32_t>(i * num_choices);
    for (size_t c = 0; c < num_choices && event.prompt != nullptr; ++c) {
      answers_[i * num_choices + c].prompt = event.prompt;
    }
    return true;
  }
  return false;
}

CallNews GenerateCall::Next(TextEvent& event) {
  while (TakeEvent(event)) {
    if (!event.error.ok()) {
      streams_.clear();
      return CallNews::kFailed;
    }
    TextChoice& answer = answers_[static_cast<size_t>(event.choice)];
    if (is_streamed_) {
      answer.finish = event.finish;
      answer.end = event.end;
      answer.usage = event.usage;
      return CallNews::kEvent;
    }
    const int32_t index = event.choice;
    const bool is_complete = event.finish != TextFinish::kNone;
    answer.Add(std::move(event), keeps_pieces_);
    if (!is_complete) continue;
    event = TextEvent();
    event.choice = index;
    return CallNews::kEvent;
  }
  const bool over = std::all_of(streams_.begin(), streams_.end(),
                                [](const auto& stream) { return stream->over(); });
  return over ? CallNews::kDone : CallNews::kNone;
}

CallUsage GenerateCall::usage() const {
  CallUsage sum;
  for (size_t i = 0; i < answers_.size(); ++i) {
    const Usage& usage = answers_[i].usage;
    // The choices of a prompt share it: it counts once.
    if (i % static_cast<size_t>(num_choices_) == 0) {
      sum.prompt_tokens += usage.prompt_tokens;
      sum.cached_tokens += usage.cached_tokens;
      if (sum.seed == 0) sum.seed = usage.seed;
    }
    sum.completion_tokens += usage.output_tokens;
    sum.accepted_tokens += usage.drafts_accepted;
    sum.rejected_tokens += std::max(usage.drafts_proposed - usage.drafts_accepted, 0);
  }
  return sum;
}

std::string GenerateCall::Summary() const {
  const CallUsage sum = usage();
  Nanos first_token{0};
  for (const TextChoice& answer : answers_) {
    const Nanos own = answer.usage.first_token;
    if (own > Nanos(0) && (first_token == Nanos(0) || own < first_token)) first_token = own;
  }
  return fmt::format(
      "model {}, {} prompt tokens, {} output tokens, {} drafts accepted, first token after {:.1f} "
      "ms",
      model_->name, sum.prompt_tokens, sum.completion_tokens, sum.accepted_tokens,
      1e3 * InSeconds(first_token));
}

}  // namespace tandem::serve
