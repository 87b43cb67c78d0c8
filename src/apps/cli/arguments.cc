#include "apps/cli/arguments.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace tandem::apps {
namespace {

constexpr std::string_view kEndOfOptions = "--";

// What stands before the first '='.
std::string_view NamePart(std::string_view word) { return word.substr(0, word.find('=')); }

// "--max-batch-size" → "max_batch_size"; "-i" stays.
std::string CanonicalName(std::string_view typed) {
  if (!typed.starts_with("--")) return std::string(typed);
  std::string name(typed.substr(2));
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string UpperCase(std::string_view name) {
  std::string upper;
  for (const char c : name) {
    upper += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return upper;
}

class Reader {
 public:
  Reader(std::span<const std::string_view> words, OptionValues& values)
      : words_(words), values_(values) {}

  Status Read() {
    bool options = true;
    while (next_ < words_.size()) {
      const std::string_view word = words_[next_++];
      if (options && word == kEndOfOptions) {
        options = false;
      } else if (options && IsOption(word)) {
        TANDEM_RETURN_IF_ERROR(ReadOption(word));
      } else {
        TANDEM_RETURN_IF_ERROR(ReadPositional(word));
      }
    }
    return {};
  }

 private:
  bool IsOption(std::string_view word) const {
    const std::string_view name = NamePart(word);
    if (name.starts_with("--")) {
      return name.size() > 2 && name.find_first_of(" \t\n") == std::string_view::npos;
    }
    if (!name.starts_with("-")) return false;
    // "-h", known or not, and "-sq", which a row names; not "-5", nor the text "-like this".
    const bool is_letter =
        name.size() == 2 && std::isalpha(static_cast<unsigned char>(name[1])) != 0;
    return is_letter || values_.Find(name) != nullptr;
  }

  bool NextIsValue() const {
    return next_ < words_.size() && words_[next_] != kEndOfOptions && !IsOption(words_[next_]);
  }

  Status ReadOption(std::string_view word) {
    const std::string_view typed = NamePart(word);
    const std::string name = CanonicalName(typed);
    const OptionSpec* spec = values_.Find(name);
    if (spec == nullptr) return values_.Set(name, {}, typed);  // says so, with a suggestion
    std::vector<std::string> given;
    if (typed.size() < word.size()) {
      given.emplace_back(word.substr(typed.size() + 1));
    } else {
      given = TakeValues(*spec);
      if (given.empty()) return ValueMissing(typed);
    }
    if (spec->type == OptionType::kTexts && values_.IsSet(*spec)) {
      const std::vector<std::string>& before = values_.Texts(*spec);
      given.insert(given.begin(), before.begin(), before.end());
    }
    return values_.Set(spec->name, given, typed);
  }

  // From the words that follow; empty where one is missing.
  std::vector<std::string> TakeValues(const OptionSpec& spec) {
    const bool may_stand_alone =
        spec.type == OptionType::kFlag || spec.type == OptionType::kOptionalText;
    std::vector<std::string> given;
    while (NextIsValue()) {
      if (spec.type == OptionType::kFlag && !IsTruthWord(words_[next_])) break;
      given.emplace_back(words_[next_++]);
      if (spec.type != OptionType::kTexts) break;
    }
    if (given.empty() && may_stand_alone) given.emplace_back("true");
    return given;
  }

  Status ValueMissing(std::string_view typed) const {
    const bool option_follows = next_ < words_.size() && words_[next_] != kEndOfOptions;
    return InvalidArgument(fmt::format(
        "{}: its value is missing{}", typed,
        option_follows ? fmt::format(", {} is an option (if it is the value, write {}={})",
                                     words_[next_], typed, words_[next_])
                       : ""));
  }

  Status ReadPositional(std::string_view word) {
    for (const OptionSpec& spec : values_.specs()) {
      if (spec.position == Position::kNamedOnly || values_.IsSet(spec)) continue;
      return values_.Set(spec.name, {std::string(word)}, UpperCase(spec.name));
    }
    return InvalidArgument(
        fmt::format("'{}' is one word too many; an option begins with --", word));
  }

  const std::span<const std::string_view> words_;
  OptionValues& values_;
  size_t next_ = 0;
};

}  // namespace

Status ReadArguments(std::span<const std::string_view> words, OptionValues& values) {
  return Reader(words, values).Read();
}

bool AsksForHelp(std::span<const std::string_view> words) {
  for (const std::string_view word : words) {
    if (word == kEndOfOptions) return false;
    if (word == "--help" || word == "-h") return true;
  }
  return false;
}

}  // namespace tandem::apps
