// A front end's request to the service and the service's events, in text and independent of the
// protocol. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "runtime/request/request.h"
#include "runtime/request/sampling_parameters.h"
#include "text/grammar.h"

namespace tandem::serve {

enum class SamplingDefaults : uint8_t {
  kGenerationConfig,  // the values of generation_config.json, else temperature 1
  kGreedy,            // the arg-max unless top_k or top_p is given, whatever the temperature
};

// What the client's protocol calls the fields that protocols name differently: an error names a
// field by the word that the client sent. Views of constants.
struct FieldNames {
  std::string_view prompt = "prompt";
  std::string_view max_tokens = "max_tokens";
  std::string_view min_tokens = "min_tokens";
  std::string_view num_choices = "n";
  std::string_view stop = "stop";
  std::string_view logit_bias = "logit_bias";
  std::string_view messages = "messages";
};

// Parts of a grammar that are compiled alone to find the one at fault: each may take as long as the
// whole.
constexpr size_t kMaxGrammarParts = 32;

// What the answer must look like.
struct OutputGrammar {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  std::string field;         // the client's word for it
  std::string owner = {};    // what it is the grammar of, where `field` does not tell
  std::string thought = {};  // what comes before, as GrammarSet::Compile has it
  // Of JSON: blanks between its parts stay allowed although the server forbids them.
  bool keeps_blanks = false;
  // What it was made of: where the whole is refused, the first part that is refused alone is named.
  std::vector<OutputGrammar> parts = {};
  // Makes the grammar to follow in its place where it is refused; empty: the request is refused.
  // While the codec lives.
  std::function<std::shared_ptr<const OutputGrammar>()> looser = {};
};

// The text before and after an answer's reasoning. Views of constants.
struct ReasoningMarks {
  std::string_view begin, end;
};

// Where a chat's prompt leaves the reasoning of its answer.
enum class ReasoningStart : uint8_t {
  kUnopened,  // the answer may open it
  kOpen,      // the answer begins inside
  kClosed,    // the answer has none
};

// How the chat template renders messages.
struct ChatOptions {
  bool add_generation_prompt = true;
  std::string variables = {};  // a JSON object for the template; empty: none
  // The last message's content, if the answer continues it: the prompt ends with it.
  std::optional<std::string> continued = {};
};

// Exactly one of text, tokens and messages is the prompt.
struct TextRequest {
  std::optional<std::string> text;
  std::optional<std::vector<int32_t>> tokens;
  std::optional<std::string> messages;        // JSON array for the chat template
  ChatOptions chat;                           // of `messages`
  bool add_special_tokens = true;             // around `text`
  std::optional<int64_t> keep_prompt_tokens;  // of a longer prompt, the last ones; above 0
  FieldNames names;

  std::optional<int64_t> max_tokens;
  // Without max_tokens: this many, or as many as fit after the prompt if that is less or this is
  // not set either.
  std::optional<int64_t> default_max_tokens;
  SamplingFields sampling;
  SamplingDefaults defaults = SamplingDefaults::kGenerationConfig;
  std::optional<uint64_t> seed;
  int64_t num_choices = 1;
  int64_t num_top_logprobs = -1;  // as SamplingParams

  // `stop` strings end the answer and are not part of it; `bad_words` are never generated. Both are
  // matched on decoded text; the name of a special token is also matched by that token's id.
  std::vector<std::string> stop;
  std::vector<std::string> bad_words;
  // Tokens that end the answer and are not part of it, besides the model's; whatever ignore_eos is.
  std::vector<int32_t> stop_token_ids;
  // As `stop` and `bad_words` for token ids; the tokens of a stop sequence are part of the answer.
  std::vector<std::vector<int32_t>> stop_sequences;
  std::vector<std::vector<int32_t>> banned_sequences;
  std::shared_ptr<const OutputGrammar> grammar;  // null: any answer
  // If set, makes the grammar once the prompt is known, in place of `grammar`. Any thread; pure.
  std::function<std::shared_ptr<const OutputGrammar>(ReasoningStart)> grammar_after;
  std::optional<ReasoningMarks> reasoning;                // of the answers to `messages`
  std::vector<std::pair<int64_t, double>> logit_bias;     // token id, added value
  std::vector<std::pair<std::string, double>> word_bias;  // every token of the word
  std::optional<int64_t> end_id;                          // instead of the model's; -1: none
  bool ignore_eos = false;
  std::optional<int64_t>
      max_draft_tokens;  // of a round; 0: plain decoding. Default: as many as pay
  ExternalDraft draft;   // the client's own, verified after the prompt
  bool return_context_logits = false;
  bool return_generation_logits = false;
  bool return_prompt = false;  // its text and tokens
  // Of the prompt's tokens, as num_top_logprobs; needs return_prompt.
  int64_t num_prompt_logprobs = -1;
  std::optional<double> priority;
  std::optional<Nanos> timeout;  // from its arrival at the service; includes time in queues

  // Cached prompts are shared only between requests with equal keys: users of one API key cannot
  // learn from cached_tokens what another key's users have asked.
  std::string cache_key;

  bool continues_prompt = false;    // the answer is read after the prompt: a leading space is kept
  bool skip_special_tokens = true;  // from the text; else their names are part of it
  bool wants_text = true;  // false: the client reads tokens, whose pieces then have no text
  bool stream = false;     // a slow reader of a stream is cut off at ServiceOptions::stream_bytes
};

struct TopLogprob {
  int32_t token = 0;
  float logprob = 0.0f;
};

// One token of an answer. Concatenated, the texts of a choice's pieces are its text.
struct TokenPiece {
  int32_t token = 0;
  std::string text;      // may be empty: the token ends inside a character
  float logprob = 0.0f;  // with num_top_logprobs >= 0
  std::vector<TopLogprob> top;
  LogitsRow logits;  // if the client asked for them: what the token was drawn from
};

// A prompt as the model reads it.
struct PromptText {
  std::string text;  // as it was given, else that of its tokens
  // Its tokens. Log-probabilities are there if they were asked for; the first token has none: NaN.
  std::vector<TokenPiece> pieces;
};

enum class TextFinish : uint8_t { kNone, kStop, kLength };
// "stop", "length"; empty for kNone.
std::string_view TextFinishName(TextFinish finish);

// News of one choice, or an error that ends the whole request.
struct TextEvent {
  int32_t choice = 0;
  std::vector<TokenPiece> pieces;
  std::vector<LogitsRow> context_logits;  // of the prompt; in one event of choice 0, if asked for
  std::shared_ptr<const PromptText> prompt;  // in the first event of choice 0, if asked for
  TextFinish finish = TextFinish::kNone;
  std::optional<TokenPiece>
      end;      // the end id after which the choice ends, without text; with kStop
  Usage usage;  // so far; complete when finish is set. output_tokens counts those shown
  ReasoningStart reasoning = ReasoningStart::kUnopened;  // if the request has marks
  Status error;
};

// One answer, collected from its events.
struct TextChoice {
  std::string text;
  int32_t num_tokens = 0;  // of the text: without those of a stop string
  std::vector<TokenPiece> pieces;
  std::vector<LogitsRow> context_logits;
  std::shared_ptr<const PromptText> prompt;
  TextFinish finish = TextFinish::kNone;
  std::optional<TokenPiece> end;  // as TextEvent
  Usage usage;
  ReasoningStart reasoning = ReasoningStart::kUnopened;

  void Add(TextEvent event, bool keep_pieces = true);
};

struct TextResult {
  std::vector<TextChoice> choices;
};

}  // namespace tandem::serve
