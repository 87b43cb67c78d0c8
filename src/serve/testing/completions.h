// Requests for completions, and what comes back, for tests of the whole server.
#pragma once

#include <string>
#include <string_view>

#include "base/clock.h"
#include "serve/http/client.h"
#include "serve/testing/fake_engine.h"

namespace tandem::serve {

inline constexpr std::string_view kGenerate = "/v2/models/ensemble/generate";
inline constexpr std::string_view kCompletions = "/v1/completions";

// The body of a request.
std::string Completion(std::string_view prompt, int max_tokens, bool stream);
// An engine that takes this long for a step.
FakeEngineOptions Paced(Nanos step);
// The text of a stream of completions; "broken" if it did not end with [DONE].
std::string ReadStream(HttpClient& client);

}  // namespace tandem::serve
