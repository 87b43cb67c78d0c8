// Request: a client's order, immutable once submitted. Token ids only: text stays in serve. Event:
// the engine's news of one choice of a request. Plain values, passed between threads.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/sampling.h"
#include "base/status.h"

namespace tandem {

using RequestId = uint64_t;
constexpr int32_t kAllChoices = -1;  // instead of one choice's number

// Restricts the tokens that may be drawn next. Owned by one choice of one request; called only by
// the executor, between draws, on one thread at a time but not always the same; drafts never change
// its state. It may take its time: other sequences do not wait for it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Clears in `allowed` ([vocab / 32] rounded up, pre-set to all ones) the bits of tokens that may
  // not follow the committed tokens and then `ahead` (drafts not yet committed). A token beyond it
  // is not the model's and needs no bit.
  virtual void FillMask(std::span<const int32_t> ahead, std::span<uint32_t> allowed) = 0;
  // Tokens that were emitted; they change the state.
  virtual void Commit(const int32_t* tokens, int32_t num_tokens) = 0;
  // Tokens of the text that must follow the committed tokens where only one text may: worth
  // drafting at no cost. Another spelling of it, or none of it after all, does no harm.
  virtual std::vector<int32_t> Forced();
  // After FillMask has left no token that may be drawn: OK if the committed tokens are a whole
  // output, which then ends with kStop, else why the choice fails.
  virtual Status AtDeadEnd();
  // A copy in the same state, for another choice.
  virtual std::unique_ptr<TokenConstraint> Clone() const = 0;
};

struct LogitBias {
  int32_t token = 0;
  float value = 0.0f;
};

// Tokens that the client has drafted itself, to follow the prompt. They are verified in the step
// that draws the first token; then decoding goes on as without them.
struct ExternalDraft {
  std::vector<int32_t> tokens;  // empty: no draft
  // [tokens, vocab] raw logits that the tokens were drawn from, or empty. With them the ratio rule
  // decides, and the draft's distribution is formed with this request's own penalties and filters:
  // the output follows the target's law if the client drew with the same. Without them a token
  // holds while the target draws the same one.
  std::vector<float> logits;
  // In [0, 1]: instead of either rule, a token holds while the target gives it at least this
  // probability after penalties and filters. Approximate: the output does not follow the target's
  // law.
  std::optional<float> threshold;

  bool by_ratio() const { return !threshold.has_value() && !logits.empty(); }
  bool by_probability() const { return threshold.has_value() || !logits.empty(); }
};

struct Request {
  std::vector<int32_t> prompt;   // at least one token
  int32_t max_tokens = 0;        // output tokens, at least 1
  SamplingParams sampling;       // min_tokens is here; seed and choice are filled by the engine
  std::optional<uint64_t> seed;  // when absent, a random one is drawn and reported
  int32_t num_choices = 1;       // n: share the prompt's blocks
  std::vector<int32_t> end_ids;  // end the output and are not part of it
  bool ignore_eos = false;       // end_ids do not end it (and may be drawn)
  std::vector<std::vector<int32_t>>
      stop_sequences;  // token ids; end the output, and are part of it
  std::vector<std::vector<int32_t>> banned_sequences;
  std::vector<LogitBias> logit_bias;
  double priority = 0.5;  // [0, 1], larger first
  // Cached prompts are shared only between requests with equal keys. A key stands for everything
  // besides the tokens that decides a block's content or who may share it.
  std::string cache_key;
  std::optional<Nanos> deadline;  // on the engine's clock; after it the request ends with kTimedOut
  std::shared_ptr<const TokenConstraint> constraint;  // cloned for each choice
  // Most drafts of a round; 0: plain decoding. The engine's own bound holds too.
  int32_t max_draft_len = std::numeric_limits<int32_t>::max();
  ExternalDraft draft;                 // verified whatever max_draft_len is
  bool return_context_logits = false;  // of the prompt; none of it is then taken from the cache
  bool return_generation_logits = false;
  // Log-probabilities of the prompt's own tokens, with as many alternatives; -1: none. Nothing of
  // such a prompt is taken from the cache either.
  int32_t num_prompt_logprobs = -1;

  // The logits of the whole prompt have to be computed.
  bool reads_context() const { return return_context_logits || num_prompt_logprobs >= 0; }
};

enum class FinishReason : uint8_t {
  kNone,
  kEnd,        // an end id
  kStop,       // a stop sequence of token ids
  kLength,     // max_tokens, or the model's longest sequence
  kCancelled,  // Cancel()
  kTimedOut,   // its deadline
  kFailed,     // Event::error says why
};
std::string_view FinishReasonName(FinishReason reason);

// Figures of one choice, complete on its last event.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt, found in the prefix tree
  int32_t output_tokens = 0;
  int32_t draft_rounds = 0;  // verification passes with at least one draft
  int32_t drafts_proposed = 0;
  int32_t drafts_accepted = 0;  // of those, emitted
  // Blocks of the cache, over all starts of a choice that was paused: allocated, and taken with
  // their content from the prefix tree.
  int32_t kv_blocks_new = 0;
  int32_t kv_blocks_reused = 0;
  uint64_t seed = 0;
  Nanos arrival{0};      // the time of Submit, on the engine's clock
  Nanos queued{0};       // submit to first scheduled
  Nanos first_token{0};  // submit to first token
  Nanos last_token{0};   // submit to last token

  int32_t kv_blocks_total() const { return kv_blocks_new + kv_blocks_reused; }
};

// The target's logits of one position, before penalties, filters and masks: [vocab].
using LogitsRow = std::vector<float>;

struct Event {
  RequestId request = 0;
  int32_t choice = 0;
  std::vector<SampledToken> tokens;  // new since the last event; without end ids
  // For requests that ask. Of the prompt: a row for each of its tokens, all in one event of choice
  // 0, the one with its first token. Of the output: for each of `tokens`, the row it was drawn
  // from.
  std::vector<LogitsRow> context_logits;
  std::vector<LogitsRow> generation_logits;
  // The prompt's tokens with their log-probabilities, in the same event as context_logits. The
  // first has none: NaN.
  std::vector<SampledToken> prompt_logprobs;
  FinishReason finish = FinishReason::kNone;
  SampledToken end;  // the end id that was drawn; with kEnd
  Usage usage;
  Status error;  // with kFailed
};

}  // namespace tandem
