// The text side of a session: its tokenizer, checked against the draft's. Main thread.
#pragma once

#include <memory>

#include "apps/session.h"
#include "serve/text_codec.h"

namespace tandem::apps {

// --tokenizer_dir, or what lies in the target's folder. INVALID_ARGUMENT when the draft's tokenizer
// gives other ids than the target's (padded vocabularies may differ), or for a dummy without one.
Result<std::unique_ptr<serve::TextCodec>> OpenCodec(const OptionValues& options,
                                                    const Session& session);

}  // namespace tandem::apps
