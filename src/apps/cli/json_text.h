// JSON of values that may hold any bytes (paths, prompts). A pure function; any thread.
#pragma once

#include <string>

namespace tandem::apps {

// On one line; bytes that are not UTF-8 are replaced, where nlohmann's dump() would throw.
template <typename Json>
std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tandem::apps
