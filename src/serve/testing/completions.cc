#include "serve/testing/completions.h"

#include <fmt/format.h>

#include <optional>

#include "serve/json.h"

namespace tandem::serve {

std::string Completion(std::string_view prompt, int max_tokens, bool stream) {
  return fmt::format(R"({{"prompt":"{}","max_tokens":{},"stream":{}}})", prompt, max_tokens,
                     stream);
}

FakeEngineOptions Paced(Nanos step) {
  FakeEngineOptions options;
  options.step = step;
  return options;
}

std::string ReadStream(HttpClient& client) {
  std::string text;
  for (bool done = false;;) {
    const Result<std::optional<std::string>> event = client.NextEvent();
    if (!event.ok()) return "broken: " + event.status().message();
    if (!event->has_value()) return done ? text : "broken: no end mark";
    if (**event == "[DONE]") {
      done = true;
      continue;
    }
    const Result<Json> json = ParseJson(**event);
    if (!json.ok() || json->Find("error") != nullptr) return "broken: " + **event;
    for (const Json& choice : *json->Find("choices")->AsArray())
      text += *choice.Find("text")->AsString();
  }
}

}  // namespace tandem::serve
