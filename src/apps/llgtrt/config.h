// llgtrt's configuration: `llgtrt.json5` files merged in order over llgtrt's defaults, and over
// them the fork's `runtime.json`. Plain values; the functions read files and have no other effect.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "apps/llgtrt/keys.h"
#include "apps/models/tokenizers.h"
#include "base/options.h"

namespace tandem::apps {

struct LlgtrtFiles {
  std::vector<std::filesystem::path> configs;  // JSON5, in the order in which they are merged
  std::filesystem::path runtime;               // strict JSON; empty: none
};

class LlgtrtConfig {
 public:
  // Errors name the file, and the key or the place: of what is no JSON5 or JSON, of keys that are
  // unknown, have a wrong type or are missing from runtime.json.
  static Result<LlgtrtConfig> Read(const LlgtrtFiles& files);

  // Gives options that are not set their values. INVALID_ARGUMENT names file, key and what the
  // option allows, also for options that are set.
  Status SetOptions(OptionValues& values) const;
  // What the tokenizer section says.
  const LlgtrtSettings& settings() const { return settings_; }
  // A key's value as JSON: the files', else llgtrt's default; empty where the model decides.
  std::string ValueOf(const LlgtrtKey& key) const;

 private:
  struct Given {
    serve::Json value;
    std::string where;  // "FILE: runtime.max_batch_size"
  };

  Status AddConfig(const std::filesystem::path& path);
  Status AddRuntime(const std::filesystem::path& path);
  Status AddMembers(const serve::Json& object, std::string_view section, std::string_view file);
  Status TakeAll();

  std::map<std::string_view, Given> given_;  // by path of the key
  LlgtrtSettings settings_;
  std::map<std::string, std::string, std::less<>> where_;  // of settings_.options, by their name
};

// JSON5 with comments. `more`: values that go over the configuration's, by path of the key.
std::string ShowLlgtrtConfig(const LlgtrtConfig& config,
                             const std::map<std::string, std::string>& more = {});

}  // namespace tandem::apps
