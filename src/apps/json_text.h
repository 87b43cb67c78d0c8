// JSON of values that may hold any bytes (paths, prompts): what is no UTF-8 is replaced, where the
// library would throw. A pure function; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tandem::apps {

inline std::string JsonText(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tandem::apps
