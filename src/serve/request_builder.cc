#include "serve/request_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/reason.h"
#include "runtime/request/joint_constraint.h"
#include "runtime/request/sampling_parameters.h"
#include "runtime/request/validate_request.h"
#include "serve/chat_prompt.h"
#include "serve/json_blanks.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kContextLength = "maximum context length";
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr std::string_view kInputLength = "maximum prompt length";

Status CheckRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return {};  // false for NaN
  return FieldError(field, fmt::format("must be a number from {} to {}", low, high));
}

Status CheckInteger(std::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return FieldError(field, fmt::format("must be an integer from {} to {}", low, high));
}

Status CheckSampling(const SamplingFields& fields, const FieldNames& names) {
  Status status;
  ForEachSamplingParameter([&](const SamplingParameter& parameter, const auto& members) {
    const auto& given = fields.*members.given;
    if (!status.ok() || !given || parameter.Allows(*given)) return;
    const bool is_min_tokens = parameter.name == "min_tokens";
    status = FieldError(is_min_tokens ? names.min_tokens : parameter.name,
                        "must be " + parameter.AllowedValues());
  });
  return status;
}

SamplingParams ParamsOf(const SamplingFields& fields) {
  SamplingParams params;
  ForEachSamplingParameter([&](const SamplingParameter&, const auto& members) {
    auto& value = params.*members.value;
    using Value = std::remove_reference_t<decltype(value)>;
    if (const auto& given = fields.*members.given) value = static_cast<Value>(*given);
  });
  return params;
}

// The arg-max unless top_k or top_p is set; 0 means unset for both.
SamplingParams GreedyByDefault(SamplingFields fields) {
  if (fields.top_p == 0.0) fields.top_p.reset();
  if (fields.top_k.value_or(0) <= 0 && !fields.top_p) fields.temperature = 0.0;
  return ParamsOf(fields);
}

SamplingParams FromGenerationConfig(SamplingFields fields, const GenerationDefaults& defaults) {
  const bool asked_to_sample = fields.temperature || fields.top_k || fields.top_p || fields.min_p;
  if (defaults.do_sample == false && !asked_to_sample) fields.temperature = 0.0;
  ForEachSamplingParameter([&](const SamplingParameter&, const auto& members) {
    auto& field = fields.*members.given;
    if (!field) field = defaults.sampling.*members.given;
  });
  SamplingParams params = ParamsOf(fields);
  params.top_p = std::max(params.top_p, 1e-6f);  // 0 asks for the most likely token only
  return params;
}

Status CheckWords(std::string_view field, const std::vector<std::string>& words, size_t max_words,
                  size_t max_bytes) {
  if (std::ranges::count(words, "") > 0) return FieldError(field, "holds an empty string");
  return CheckWordSizes(field, words, max_words, max_bytes);
}

std::string_view PromptField(const TextRequest& text) {
  return text.messages ? text.names.messages : text.names.prompt;
}

// In OpenAI's words, which clients parse.
Status PromptTooLong(const TextRequest& text, int64_t prompt_tokens, int32_t max_seq_len) {
  const std::string_view what = text.messages ? text.names.messages : "prompt";
  return FieldError(PromptField(text),
                    fmt::format("This model's {} is {} tokens. However, your {} resulted in {} "
                                "tokens. Please reduce the length of the {}.",
                                kContextLength, max_seq_len, what, prompt_tokens, what))
      .WithReason(Reason::kContextLength);
}

Status RequestTooLong(const FieldNames& names, int64_t prompt_tokens, int64_t max_tokens,
                      int32_t max_seq_len) {
  return FieldError(names.max_tokens,
                    fmt::format("This model's {} is {} tokens. However, you requested {} tokens "
                                "({} in the prompt, "
                                "{} in the completion). Please reduce the length of either one.",
                                kContextLength, max_seq_len, prompt_tokens + max_tokens,
                                prompt_tokens, max_tokens))
      .WithReason(Reason::kContextLength);
}

Status CheckInputLength(const TextRequest& text, int64_t prompt_tokens,
                        const EngineLimits& engine) {
  // A prompt that fills the whole context is refused below.
  if (prompt_tokens <= engine.max_input_len || prompt_tokens >= engine.max_seq_len) return {};
  return FieldError(PromptField(text),
                    fmt::format("This model's {} is {} tokens (max_input_len). However, your "
                                "prompt has {} tokens. Please shorten it.",
                                kInputLength, engine.max_input_len, prompt_tokens))
      .WithReason(Reason::kContextLength);
}

// The codec's INVALID_ARGUMENT gets the field; other errors are unchanged.
Status AtField(std::string_view field, const Status& status) {
  const bool is_named = status.code() != Code::kInvalidArgument || !status.field().empty();
  return is_named ? status : FieldError(field, status.message());
}

// At most `bytes` of the text, cut at a whole character.
std::string_view Beginning(std::string_view text, size_t bytes) {
  while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0) == 0x80) --bytes;
  return text.substr(0, bytes);
}

// At most the last `bytes` of the text, cut at a whole character.
std::string_view Ending(std::string_view text, size_t bytes) {
  size_t begin = text.size() - bytes;
  while (begin < text.size() && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) ++begin;
  return text.substr(begin);
}

constexpr size_t kUsualTokenBytes = 8;  // above that of usual text: what fits is rarely cut

// The number of bytes per token is not known in advance: a token may stand for a word, a line of
// spaces or, where unknown characters become one token, a whole text. So beginnings of the text,
// each twice as long as the previous one, are tokenized first, to find out whether the text is far
// too long: refusing a prompt then costs time in proportion to the tokens that would fit, not to
// the bytes received. The last tokens of a cut beginning differ from those of the whole text, so
// "far too long" means twice the limit.
template <typename Encode>
Result<std::vector<int32_t>> TokenizeWithin(std::string_view field, std::string_view text,
                                            const EngineLimits& engine, const Encode& encode) {
  const auto fits = static_cast<size_t>(engine.max_seq_len);
  const size_t most = 2 * fits;
  for (size_t bytes = kUsualTokenBytes * fits; bytes < text.size(); bytes *= 2) {
    const auto tokens = encode(Beginning(text, bytes));
    if (!tokens.ok()) return AtField(field, tokens.status());
    if (tokens->size() > most) {
      return FieldError(field, fmt::format(
                                   "This model's {} is {} tokens. However, your prompt of {} bytes "
                                   "has more than {} tokens. Please reduce its length.",
                                   kContextLength, engine.max_seq_len, text.size(), most))
          .WithReason(Reason::kContextLength);
    }
  }
  Result<std::vector<int32_t>> tokens = encode(text);
  if (!tokens.ok()) return AtField(field, tokens.status());
  return tokens;
}

void KeepLast(int64_t count, std::vector<int32_t>& tokens) {
  const auto size = static_cast<int64_t>(tokens.size());
  if (count >= 1 && count < size) tokens.erase(tokens.begin(), tokens.end() - count);
}

// The last `count` tokens (or all, where there are fewer) of a text of any length, for a time in
// proportion to `count`. Endings of the text, each twice as long as the previous one, are tokenized
// until one has more than twice as many tokens: the first tokens of a cut ending differ from those
// of the whole text, and are not kept. Only where the tokenizer groups a long run from its
// beginning, such as digits by threes, the groups may be others.
template <typename Encode>
Result<std::vector<int32_t>> TokenizeEnding(std::string_view field, std::string_view text,
                                            int64_t count, const Encode& encode) {
  constexpr size_t kMargin = 16;  // tokens
  const size_t enough = 2 * static_cast<size_t>(count) + kMargin;
  for (size_t bytes = kUsualTokenBytes * enough;; bytes *= 2) {
    const bool is_whole = bytes >= text.size();
    Result<std::vector<int32_t>> tokens = encode(is_whole ? text : Ending(text, bytes));
    if (!tokens.ok()) return AtField(field, tokens.status());
    if (!is_whole && tokens->size() <= enough) continue;
    KeepLast(count, *tokens);
    return tokens;
  }
}

// The template has written the special tokens.
Result<std::vector<int32_t>> ChatTokens(const TextRequest& text, const TextCodec& codec,
                                        const RequestLimits& limits, const EngineLimits& engine,
                                        ReasoningStart& reasoning) {
  const Result<ChatPrompt> prompt = RenderPrompt(text, codec);
  if (!prompt.ok()) return AtField(text.names.messages, prompt.status());
  reasoning = prompt->reasoning;
  const ChatText& chat = prompt->chat;
  const auto encode = [&](std::string_view beginning) {
    return limits.allow_control_tokens ? codec.Encode(beginning, /*add_special_tokens=*/false)
                                       : codec.EncodeChat(beginning, chat);
  };
  return TokenizeWithin(text.names.messages, chat.text, engine, encode);
}

Status FillMaxTokens(const TextRequest& text, const EngineLimits& engine, Request& request) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  TANDEM_RETURN_IF_ERROR(CheckInputLength(text, prompt_tokens, engine));
  const int64_t room = engine.max_seq_len - prompt_tokens;
  // However few tokens are asked for, and completions ask for some where the client does not.
  if (room < 1) return PromptTooLong(text, prompt_tokens, engine.max_seq_len);
  const int64_t wanted =
      text.max_tokens.value_or(std::min(room, text.default_max_tokens.value_or(room)));
  if (wanted > room) {
    // Clients read the figures, which should add up however large the requested number is.
    const int64_t told = std::min<int64_t>(wanted, std::numeric_limits<int32_t>::max());
    return RequestTooLong(text.names, prompt_tokens, told, engine.max_seq_len);
  }
  request.max_tokens = static_cast<int32_t>(wanted);
  if (request.sampling.min_tokens > request.max_tokens) {
    return FieldError(text.names.min_tokens, fmt::format("must be at most {}, which is {}",
                                                         text.names.max_tokens, wanted));
  }
  return {};
}

Status FillBias(const TextRequest& text, const TextCodec& codec, const RequestLimits& limits,
                Request& request) {
  for (const auto& [token, value] : text.logit_bias) {
    TANDEM_RETURN_IF_ERROR(CheckInteger(text.names.logit_bias, token, 0, codec.vocab_size() - 1));
    TANDEM_RETURN_IF_ERROR(
        CheckRange(text.names.logit_bias, value, -limits.max_bias, limits.max_bias));
    request.logit_bias.push_back({static_cast<int32_t>(token), static_cast<float>(value)});
  }
  if (text.word_bias.size() > kMaxLogitBias) {
    return FieldError("embedding_bias_words",
                      fmt::format("at most {} words are allowed", kMaxLogitBias));
  }
  for (const auto& [word, value] : text.word_bias) {
    if (word.size() > limits.max_word_bytes) {
      return FieldError("embedding_bias_words", "holds a word that is too long");
    }
    TANDEM_RETURN_IF_ERROR(
        CheckRange("embedding_bias_weights", value, -limits.max_bias, limits.max_bias));
    const Result<std::vector<int32_t>> tokens = codec.Encode(word, false);
    if (!tokens.ok()) return AtField("embedding_bias_words", tokens.status());
    for (const int32_t token : *tokens) {
      request.logit_bias.push_back({token, static_cast<float>(value)});
    }
  }
  if (request.logit_bias.size() > kMaxLogitBias) {
    return FieldError(text.names.logit_bias,
                      fmt::format("at most {} tokens are allowed", kMaxLogitBias));
  }
  return {};
}

void AddOnce(int32_t id, std::vector<int32_t>& ids) {
  if (std::ranges::count(ids, id) == 0) ids.push_back(id);
}

Status FillEnd(const TextRequest& text, const TextCodec& codec, Request& request) {
  if (text.end_id) {
    TANDEM_RETURN_IF_ERROR(CheckInteger("end_id", *text.end_id, -1, codec.vocab_size() - 1));
    if (*text.end_id >= 0) request.end_ids = {static_cast<int32_t>(*text.end_id)};
  } else {
    request.end_ids = codec.end_ids();
  }
  if (text.ignore_eos) request.end_ids.clear();
  for (const int32_t id : text.stop_token_ids) {
    TANDEM_RETURN_IF_ERROR(CheckInteger("stop_token_ids", id, 0, codec.vocab_size() - 1));
    AddOnce(id, request.end_ids);
  }
  // A special token usually adds no text that could be matched: one that a stop string names
  // becomes an end id.
  for (const std::string& word : text.stop) {
    if (const std::optional<int32_t> id = codec.SpecialToken(word)) AddOnce(*id, request.end_ids);
  }
  return {};
}

Status FillBadWords(const TextRequest& text, const TextCodec& codec, Request& request) {
  request.banned_sequences = text.banned_sequences;
  if (text.bad_words.empty()) return {};
  for (const std::string& word : text.bad_words) {
    if (const auto id = codec.SpecialToken(word)) request.banned_sequences.push_back({*id});
  }
  Result<std::shared_ptr<const TokenConstraint>> constraint = codec.BanWords(text.bad_words);
  if (!constraint.ok()) return AtField("bad_words", constraint.status());
  request.constraint = Join(request.constraint, *std::move(constraint));
  return {};
}

// The refusal of a grammar, by the field of the part that is at fault.
Status GrammarRefused(const OutputGrammar& grammar, const Status& refusal, const TextCodec& codec,
                      const std::vector<int32_t>& end_ids, const std::function<bool()>& is_wanted) {
  const size_t count = std::min(grammar.parts.size(), kMaxGrammarParts);
  for (const OutputGrammar& part : std::span(grammar.parts).first(count)) {
    if (refusal.code() != Code::kInvalidArgument || !is_wanted()) break;
    const auto alone = codec.FollowGrammar(part, end_ids);
    if (alone.ok()) continue;
    return AtField(part.field,
                   part.owner.empty() ? alone.status() : alone.status().Annotate(part.owner));
  }
  return AtField(grammar.field, refusal);
}

}  // namespace

Status CheckWordSizes(std::string_view field, std::span<const std::string> words, size_t max_words,
                      size_t max_bytes) {
  if (words.size() > max_words) {
    return FieldError(field, fmt::format("at most {} strings are allowed", max_words));
  }
  for (const std::string& word : words) {
    if (word.size() <= max_bytes) continue;
    return FieldError(field, fmt::format("holds a string longer than {} bytes", max_bytes));
  }
  return {};
}

Result<std::vector<int32_t>> TokenizePrompt(std::string_view field, std::string_view text,
                                            bool add_special_tokens, const TextCodec& codec,
                                            const EngineLimits& engine) {
  return TokenizeWithin(field, text, engine, [&](std::string_view beginning) {
    return codec.Encode(beginning, add_special_tokens);
  });
}

Status CheckTokens(std::string_view field, std::span<const int32_t> tokens,
                   const TextCodec& codec) {
  const int32_t vocab = codec.vocab_size();
  const auto beyond =
      std::ranges::find_if(tokens, [vocab](int32_t token) { return token < 0 || token >= vocab; });
  if (beyond == tokens.end()) return {};
  return FieldError(
      field, fmt::format("token id {} is outside the vocabulary (0 to {})", *beyond, vocab - 1));
}

Result<std::vector<int32_t>> PromptTokens(const TextRequest& text, const TextCodec& codec,
                                          const RequestLimits& limits, const EngineLimits& engine,
                                          ReasoningStart* reasoning) {
  if (text.tokens) {
    if (text.tokens->empty()) return FieldError(text.names.prompt, "must not be empty");
    TANDEM_RETURN_IF_ERROR(CheckTokens(text.names.prompt, *text.tokens, codec));
    return *text.tokens;
  }
  if (text.messages) {
    ReasoningStart start{};
    return ChatTokens(text, codec, limits, engine, reasoning == nullptr ? start : *reasoning);
  }
  const std::string_view prompt = text.text ? std::string_view(*text.text) : std::string_view();
  if (prompt.empty()) return FieldError(text.names.prompt, "must not be empty");
  // As many as fill the context are refused, whichever they are.
  const int64_t kept = text.keep_prompt_tokens.value_or(engine.max_seq_len);
  if (kept >= 1 && kept < engine.max_seq_len) {
    return TokenizeEnding(text.names.prompt, prompt, kept, [&](std::string_view ending) {
      return codec.Encode(ending, text.add_special_tokens);
    });
  }
  return TokenizePrompt(text.names.prompt, prompt, text.add_special_tokens, codec, engine);
}

Result<BuiltRequest> BuildRequest(const TextRequest& text, const TextCodec& codec,
                                  const GenerationDefaults& defaults, const EngineLimits& engine,
                                  const RequestLimits& limits, Nanos arrived) {
  // Checks that are cheap come before the prompt is tokenized.
  TANDEM_RETURN_IF_ERROR(CheckSampling(text.sampling, text.names));
  TANDEM_RETURN_IF_ERROR(CheckInteger(text.names.num_choices, text.num_choices, 1,
                                      std::min<int64_t>(limits.max_choices, engine.max_choices)));
  TANDEM_RETURN_IF_ERROR(CheckInteger("logprobs", text.num_top_logprobs, -1, kMaxTopLogprobs));
  TANDEM_RETURN_IF_ERROR(
      CheckInteger("prompt_logprobs", text.num_prompt_logprobs, -1, kMaxTopLogprobs));
  TANDEM_RETURN_IF_ERROR(
      CheckWords(text.names.stop, text.stop, limits.max_stop, limits.max_word_bytes));
  TANDEM_RETURN_IF_ERROR(
      CheckWords("bad_words", text.bad_words, limits.max_bad_words, limits.max_word_bytes));
  if (text.max_tokens && *text.max_tokens < 1)
    return FieldError(text.names.max_tokens, "must be at least 1");
  if (text.priority) TANDEM_RETURN_IF_ERROR(CheckRange("priority", *text.priority, 0, 1));
  if (text.logit_bias.size() > kMaxLogitBias) {
    return FieldError(text.names.logit_bias,
                      fmt::format("at most {} tokens are allowed", kMaxLogitBias));
  }

  BuiltRequest built;
  Request& request = built.request;
  request.sampling = text.defaults == SamplingDefaults::kGreedy
                         ? GreedyByDefault(text.sampling)
                         : FromGenerationConfig(text.sampling, defaults);
  request.sampling.num_top_logprobs = static_cast<int32_t>(text.num_top_logprobs);
  request.seed = text.seed;
  request.stop_sequences = text.stop_sequences;
  request.num_choices = static_cast<int32_t>(text.num_choices);
  if (text.max_draft_tokens) {
    TANDEM_RETURN_IF_ERROR(CheckInteger("num_draft_tokens", *text.max_draft_tokens, 0, kMaxInt));
    request.max_draft_len = static_cast<int32_t>(*text.max_draft_tokens);
  }
  request.cache_key = text.cache_key;
  request.draft = text.draft;
  request.return_context_logits = text.return_context_logits;
  request.return_generation_logits = text.return_generation_logits;
  request.num_prompt_logprobs = static_cast<int32_t>(text.num_prompt_logprobs);
  if (text.priority) request.priority = *text.priority;
  if (text.timeout) request.deadline = arrived + *text.timeout;
  TANDEM_RETURN_IF_ERROR(FillEnd(text, codec, request));
  TANDEM_RETURN_IF_ERROR(FillBias(text, codec, limits, request));
  TANDEM_RETURN_IF_ERROR(FillBadWords(text, codec, request));
  TANDEM_ASSIGN_OR_RETURN(request.prompt,
                          PromptTokens(text, codec, limits, engine, &built.reasoning));
  if (request.prompt.empty()) return FieldError(text.names.prompt, "must not be empty");
  if (text.keep_prompt_tokens) KeepLast(*text.keep_prompt_tokens, request.prompt);
  TANDEM_RETURN_IF_ERROR(FillMaxTokens(text, engine, request));
  built.grammar = text.grammar_after ? text.grammar_after(built.reasoning) : text.grammar;
  if (built.grammar != nullptr && limits.compact_json && IsJsonGrammar(*built.grammar) &&
      !built.grammar->keeps_blanks) {
    auto compact = std::make_shared<OutputGrammar>(*built.grammar);
    ForbidBlanks(*compact);  // a schema's own options hold
    built.grammar = std::move(compact);
  }
  return built;
}

Result<bool> FollowKnownGrammar(const TextCodec& codec, BuiltRequest& built) {
  if (built.grammar == nullptr) return true;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const TokenConstraint> constraint,
                          codec.FollowKnownGrammar(*built.grammar, built.request.end_ids));
  if (constraint == nullptr) return false;
  built.request.constraint = Join(std::move(constraint), built.request.constraint);
  built.grammar = nullptr;
  return true;
}

Status FollowGrammar(const TextCodec& codec, const std::function<bool()>& is_wanted,
                     BuiltRequest& built) {
  const std::shared_ptr<const OutputGrammar> grammar = std::exchange(built.grammar, nullptr);
  if (grammar == nullptr) return {};
  Request& request = built.request;
  Result<std::shared_ptr<const TokenConstraint>> constraint =
      codec.FollowGrammar(*grammar, request.end_ids);
  std::shared_ptr<const OutputGrammar> followed = grammar;
  while (constraint.status().code() == Code::kInvalidArgument && followed->looser) {
    followed = followed->looser();
    constraint = codec.FollowGrammar(*followed, request.end_ids);
  }
  if (!constraint.ok()) {
    return GrammarRefused(*grammar, constraint.status(), codec, request.end_ids, is_wanted);
  }
  request.constraint = Join(*std::move(constraint), request.constraint);
  return {};
}

}  // namespace tandem::serve
