// The text side of a session: its tokenizer, checked against the draft's, and its sampling
// defaults. Main thread.
#pragma once

#include <memory>

#include "apps/session.h"
#include "serve/generation_defaults.h"
#include "serve/text_codec.h"

namespace tandem::apps {

// What the model's folder says about text.
struct TextModel {
  std::unique_ptr<serve::TextCodec> codec;
  serve::GenerationDefaults defaults;
};

// From --tokenizer_dir, or the target's folder. INVALID_ARGUMENT when the tokenizer has ordinary
// tokens that a model has no row for, when the draft's tokenizer gives other ids than the target's,
// or when a dummy model comes without a tokenizer. Other differences between the two vocabularies
// are logged. `limits`: of each grammar.
Result<TextModel> OpenTextModel(const Session& session, const GrammarLimits& limits = {});

}  // namespace tandem::apps
