// The option table: every option of the program is one row of data. Parsing, ranges, --help,
// environment names, shell completion and the documentation page are made from these rows. Rows are
// constants; values are plain, owned by whoever parsed them, and may be read from any thread
// afterwards.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

enum class OptionType : uint8_t {
  kFlag,  // true when given bare; also true/false, 1/0, enable/disable
  kInt,
  kFloat,
  kBytes,  // an integer with an optional unit: see ParseBytes
  kText,
  kTexts,         // one or more values after one name
  kOptionalText,  // "true" when given bare; else one value
  kInts,          // one value: integers between commas
  kFloats,        // one value: numbers between commas
};

// Whether a value may stand on the command line without its option's name. Such values belong to
// these options in the order of their rows.
enum class Position : uint8_t { kNamedOnly, kOptional, kRequired };

struct OptionSpec {
  std::string_view name = {};  // canonical, with underscores: "max_batch_size"
  OptionType type = OptionType::kText;
  std::string_view default_value = {};  // as text; empty: none (0, false, "")
  std::string_view gpu_default = {};    // instead of it on a GPU, if not empty
  std::string_view meaning = {};
  std::string_view group = "Options";
  std::string_view choices = {};                       // "auto|avx2|amx": the only values allowed
  double min = std::numeric_limits<double>::lowest();  // of each number of a list
  double max = std::numeric_limits<double>::max();
  std::string_view alias =
      {};  // other spellings: "draft_model", "model_store|repo"; a letter: "-i"
  Position position = Position::kNamedOnly;
};

// "TANDEM_MAX_BATCH_SIZE"
std::string EnvironmentName(const OptionSpec& spec);
// Values a flag accepts: true, 1, enable, on, yes and their opposites.
bool IsTruthWord(std::string_view word);

// "one of cpu, cuda", "a number from 1 to 64": what an option may be.
std::string AllowedValues(const OptionSpec& spec);
// INVALID_ARGUMENT "is out of range" and the like when it may not be this. `value` is as given.
Status CheckValue(const OptionSpec& spec, std::string_view value);

class OptionValues {
 public:
  // Starts with the defaults of `specs`, which must outlive the values.
  explicit OptionValues(std::span<const OptionSpec> specs);

  // `where` is the source as the reader knows it: "--max_batch_size", "TANDEM_MAX_BATCH_SIZE". An
  // unknown name (the closest known one is suggested), an empty value, a wrong type or a value out
  // of range is INVALID_ARGUMENT with the key and the allowed values.
  Status Set(std::string_view name, const std::vector<std::string>& values, std::string_view where);
  // Takes values from the environment for options that are not set.
  Status ReadEnvironment();

  // Values are asked for by their row, so that no option's name is written down a second time: see
  // bound_options.h.
  bool IsSet(const OptionSpec& spec) const;
  bool Flag(const OptionSpec& spec) const;
  int64_t Int(const OptionSpec& spec) const;  // kInt, kBytes
  double Float(const OptionSpec& spec) const;
  const std::string& Text(const OptionSpec& spec) const;  // kText, kOptionalText
  const std::vector<std::string>& Texts(const OptionSpec& spec) const;
  std::vector<int64_t> Ints(const OptionSpec& spec) const;
  std::vector<double> Floats(const OptionSpec& spec) const;
  // The first value as it was given, whatever its type; empty without one.
  const std::string& Given(const OptionSpec& spec) const;

  std::span<const OptionSpec> specs() const { return specs_; }
  // The row of a name or an alias; null when there is none.
  const OptionSpec* Find(std::string_view name) const;

 private:
  const std::vector<std::string>& Values(const OptionSpec& spec, OptionType type) const;

  std::span<const OptionSpec> specs_;
  std::map<std::string_view, std::vector<std::string>> values_;  // by canonical name
  std::map<std::string_view, bool> set_;
};

// The candidate that `word` most likely meant; empty when none is close.
std::string_view ClosestName(std::string_view word, std::span<const std::string_view> candidates);

// "64MB" → 64000000, "64MiB" and "64M" → 67108864; K, M, G and T, in capitals or small.
Result<int64_t> ParseBytes(std::string_view text);
// "1.5 GiB"
std::string FormatBytes(int64_t bytes);

}  // namespace tandem
