// The keys of llgtrt's configuration, `llgtrt.json5` and `runtime.json`, as one table: for each its
// default, meaning and effect. Constants and pure functions; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "serve/json.h"

namespace tandem::apps {

// What the files ask for.
struct LlgtrtSettings {
  std::map<std::string, std::string, std::less<>> options;  // of the option table: name, value
  serve::Json::Object tokenizer_config;  // members instead of tokenizer_config.json's
  std::optional<int64_t> n_vocab;        // tokenizer.n_vocab_override
};

struct LlgtrtKey {
  std::string_view path;          // "runtime.max_batch_size"
  std::string_view default_json;  // llgtrt's; empty: as the option's or the model's own
  std::string_view meaning;
  // INVALID_ARGUMENT with a sentence that follows the key's name: "must be true or false, not
  // null". A range of an option is checked by whoever sets it.
  std::function<Status(const serve::Json& value, LlgtrtSettings& settings)> take;

  // "runtime", "llguidance.limits"; "max_batch_size".
  std::string_view section() const { return path.substr(0, path.rfind('.')); }
  std::string_view name() const { return path.substr(path.rfind('.') + 1); }
};

// In the order in which a configuration is printed.
std::span<const LlgtrtKey> LlgtrtKeys();

}  // namespace tandem::apps
