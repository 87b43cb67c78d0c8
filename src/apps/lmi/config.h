// What SageMaker's LMI containers are configured with: serving.properties of each model,
// config.properties of the server, and the environment, resolved with the precedence that
// djl-serving has. Pure functions over values that the caller has read; any thread.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/lmi/keys.h"
#include "apps/lmi/properties_file.h"
#include "base/options.h"

namespace tandem::apps {

using Environment = std::map<std::string, std::string, std::less<>>;
Environment ProcessEnvironment();
// Empty where it is not set.
std::string_view VariableOf(const Environment& environment, std::string_view name);
// Whether a variable says yes, in the words that a key takes.
bool IsOn(std::string_view value);

// The file of a model's folder.
inline constexpr std::string_view kLmiProperties = "serving.properties";

// A value and where it stands: "DIR/serving.properties: line 3: option.max_input_len",
// "OPTION_MAX_INPUT_LEN".
struct LmiGiven {
  std::string value;
  std::string where;
};
using LmiGivenKeys = std::map<std::string, LmiGiven, std::less<>>;  // by key

// A file of properties; an empty path is no file.
struct LmiFile {
  std::filesystem::path path;
  std::vector<Property> properties;
};
// NOT_FOUND without the file.
Result<LmiFile> ReadLmiFile(const std::filesystem::path& path);

// The environment with the names that text-generation-inference and SageMaker have for variables of
// djl-serving: each counts where its target is not set.
std::map<std::string, LmiGiven, std::less<>> WithLmiAliases(const Environment& environment);

// Of the server: config.properties, over it SERVING_..., over these SageMaker's own variables.
LmiGivenKeys LmiServerKeys(const Environment& environment, const LmiFile& config);
// Of one model: serving.properties, under it OPTION_..., under these variables such as
// TENSOR_PARALLEL_DEGREE and the server's values of keys that both have. SageMaker's timeouts
// go over all.
LmiGivenKeys LmiModelKeys(const Environment& environment, const LmiGivenKeys& server,
                          const LmiFile& file);

struct LmiContext {
  int generation = 26;  // of 0.26
  bool on_gpu = false;
  int num_models = 1;  // that share the device
  int model = 0;       // the number of models that are opened before this one
};

class LmiConfig {
 public:
  // INVALID_ARGUMENT names the place, the key and what is allowed. `given` of a model or of the
  // server; keys of the other kind are left alone.
  static Result<LmiConfig> ForModel(LmiGivenKeys given, const LmiContext& context);
  static Result<LmiConfig> ForServer(LmiGivenKeys given, const LmiContext& context);

  // Gives options that are not set their values. INVALID_ARGUMENT names place, key and what the
  // option allows, also for options that are set.
  Status SetOptions(OptionValues& values) const;

  const LmiSettings& settings() const { return settings_; }
  const LmiGivenKeys& given() const { return given_; }
  // What is to be told: keys that are unknown or have no effect, comments after values.
  const std::vector<std::string>& notes() const { return notes_; }
  // In the syntax of serving.properties: every key that counts with its value, as a comment where
  // it comes from, and what it does; the options that follow, over which those that `values` have
  // set go. Errors are those of SetOptions.
  Result<std::string> Show(const OptionValues& values) const;
  // Takes back what the keys say of an option, and tells why.
  void Drop(std::string_view option, std::string_view why);

 private:
  static Result<LmiConfig> Make(LmiGivenKeys given, const LmiContext& context, bool is_server);
  Status TakeGiven(bool is_server);
  Status TakeDefaults(const LmiContext& context, bool is_server);
  void SettleLimits(const LmiContext& context);
  void SetFrom(const std::string& option, std::string value, std::string_view key);
  void NoteWithoutEffect(bool is_server);

  LmiGivenKeys given_;
  LmiSettings settings_;
  std::map<std::string, std::string, std::less<>> where_;  // of settings_.options, by their name
  std::vector<std::string> notes_;
};

}  // namespace tandem::apps
