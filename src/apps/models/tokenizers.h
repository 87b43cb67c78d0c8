// The text side of a session: its tokenizer, checked against the draft's, and its sampling
// defaults. Main thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/models/session.h"
#include "serve/generation_defaults.h"
#include "serve/text_codec.h"

namespace tandem::apps {

// What the model's folder says about text.
struct TextModel {
  std::unique_ptr<serve::TextCodec> codec;
  serve::GenerationDefaults defaults;
};

// What an operator says of the text side.
struct TextSettings {
  std::string tokenizer_config;    // Tokenizer::Options::config_overrides
  std::optional<int64_t> n_vocab;  // the model's number of tokens, which is compared
  GrammarLimits grammars;
};

// From --tokenizer_dir, or the target's folder. INVALID_ARGUMENT when the tokenizer has ordinary
// tokens that a model has no row for, when the draft's tokenizer gives other ids than the target's,
// when a dummy model comes without a tokenizer, or when `settings` name another vocabulary. Other
// differences between the two vocabularies are logged.
Result<TextModel> OpenTextModel(const Session& session, const TextSettings& settings = {});

}  // namespace tandem::apps
