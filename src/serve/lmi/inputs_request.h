// The `inputs` schema of djl-serving's language models → text requests, by the rules of a release.
// A pure function; errors are INVALID_ARGUMENT with the client's field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "serve/json.h"
#include "serve/lmi/settings.h"
#include "serve/text_request.h"

namespace tandem::serve::lmi {

struct InputsCall {
  std::vector<TextRequest> prompts;  // one for each input
  std::vector<std::string> inputs;
  bool is_list = false;  // answers are a list, as of a batch
  bool stream = false;
  OutputFormatter formatter = OutputFormatter::kJson;  // never kByStream
  bool details = false;
  bool prefill = false;    // details have the prompt's tokens
  bool full_text = false;  // the generated text begins with the prompt
  int64_t top_tokens = 0;  // alternatives of each token
  int64_t num_generated = 1;
  int64_t num_choices = 1;           // of them, the best, that the client gets
  std::vector<std::string> ignored;  // parameters without effect
};

Result<InputsCall> ParseInputs(const Json& body, const Settings& settings);

// The formatter of that name; kByStream for a name that is none.
OutputFormatter FormatterOf(std::string_view name);
// What an unset formatter stands for.
OutputFormatter ResolveFormatter(OutputFormatter formatter, bool stream, bool tgi_compat);
// Of a request that names no number.
int64_t DefaultNewTokens(const Settings& settings);

}  // namespace tandem::serve::lmi
