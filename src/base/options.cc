#include "base/options.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace tandem {
namespace {

constexpr std::string_view kTrueWords[] = {"true", "True", "TRUE", "1", "enable", "on", "yes"};
constexpr std::string_view kFalseWords[] = {"false", "False", "FALSE", "0", "disable", "off", "no"};

bool Among(std::string_view word, std::span<const std::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

Result<double> ParseNumber(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value)) {
    return InvalidArgument("is not a number");
  }
  return value;
}

Result<int64_t> ParseInteger(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return InvalidArgument("is not an integer");
  }
  return value;
}

bool IsList(OptionType type) { return type == OptionType::kInts || type == OptionType::kFloats; }

std::vector<std::string_view> SplitAt(char separator, std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at != std::string_view::npos;) {
    at = text.find(separator);
    words.push_back(text.substr(0, at));
    if (at != std::string_view::npos) text.remove_prefix(at + 1);
  }
  return words;
}

// The row of one number of a list.
OptionSpec ElementOf(OptionSpec spec) {
  spec.type = spec.type == OptionType::kInts ? OptionType::kInt : OptionType::kFloat;
  return spec;
}

// As typed: "--draft_len"; a one-letter alias has its dash already.
std::string DashedName(std::string_view name) {
  return (name.starts_with('-') ? "" : "--") + std::string(name);
}

bool IsChoice(std::string_view value, std::string_view choices) {
  while (!choices.empty()) {
    const size_t bar = choices.find('|');
    if (value == choices.substr(0, bar)) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
  return false;
}

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

Status CheckRange(const OptionSpec& spec, double value) {
  if (value < spec.min || value > spec.max) return InvalidArgument("is out of range");
  return {};
}

// An integer in all its digits, however large.
std::string ShowBound(double bound) {
  return bound == std::trunc(bound) ? fmt::format("{:.0f}", bound) : fmt::format("{}", bound);
}

}  // namespace

std::string EnvironmentName(const OptionSpec& spec) {
  std::string name = "TANDEM_";
  for (const char c : spec.name) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string AllowedValues(const OptionSpec& spec) {
  if (IsList(spec.type)) return AllowedValues(ElementOf(spec)) + ", or several between commas";
  if (!spec.choices.empty()) {
    std::string words(spec.choices);
    for (size_t at = 0; (at = words.find('|', at)) != std::string::npos; at += 2) {
      words.replace(at, 1, ", ");
    }
    return "one of " + words;
  }
  if (spec.type == OptionType::kBytes) {
    return "bytes, as a number or with a unit: KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB "
           "(powers of 1024)";
  }
  const bool low = spec.min > std::numeric_limits<double>::lowest();
  const bool high = spec.max < std::numeric_limits<double>::max();
  if (low && high) {
    return fmt::format("a number from {} to {}", ShowBound(spec.min), ShowBound(spec.max));
  }
  if (low) return "a number of at least " + ShowBound(spec.min);
  if (high) return "a number of at most " + ShowBound(spec.max);
  switch (spec.type) {
    case OptionType::kFlag:
      return "true or false";
    case OptionType::kInt:
      return "an integer";
    case OptionType::kFloat:
      return "a number";
    case OptionType::kText:
    case OptionType::kTexts:
    case OptionType::kOptionalText:
      return "text";
    case OptionType::kBytes:
    case OptionType::kInts:
    case OptionType::kFloats:
      break;  // told above
  }
  return "";
}

Status CheckValue(const OptionSpec& spec, std::string_view value) {
  if (value.empty()) return InvalidArgument("is empty");
  if (!spec.choices.empty() && !IsChoice(value, spec.choices)) return InvalidArgument("is unknown");
  switch (spec.type) {
    case OptionType::kFlag:
      if (IsTruthWord(value)) return {};
      return InvalidArgument("is neither true nor false");
    case OptionType::kInt: {
      TANDEM_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(value));
      return CheckRange(spec, static_cast<double>(number));
    }
    case OptionType::kBytes: {
      TANDEM_ASSIGN_OR_RETURN(const int64_t number, ParseBytes(value));
      return CheckRange(spec, static_cast<double>(number));
    }
    case OptionType::kFloat: {
      TANDEM_ASSIGN_OR_RETURN(const double number, ParseNumber(value));
      return CheckRange(spec, number);
    }
    case OptionType::kInts:
    case OptionType::kFloats:
      for (const std::string_view word : SplitAt(',', value)) {
        const Status status = CheckValue(ElementOf(spec), word);
        if (status.ok()) continue;
        return InvalidArgument(fmt::format("has '{}', which {}", word, status.message()));
      }
      return {};
    case OptionType::kText:
    case OptionType::kTexts:
    case OptionType::kOptionalText:
      return {};
  }
  return {};
}

bool IsTruthWord(std::string_view word) {
  return Among(word, kTrueWords) || Among(word, kFalseWords);
}

std::string_view ClosestName(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view closest;
  // A third of the letters may be wrong; more is another word.
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string_view candidate : candidates) {
    if (const size_t distance = EditDistance(word, candidate); distance < least) {
      least = distance;
      closest = candidate;
    }
  }
  return closest;
}

Result<int64_t> ParseBytes(std::string_view text) {
  std::string unit;
  while (!text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0) {
    unit.insert(unit.begin(),
                static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
    text.remove_suffix(1);
  }
  int64_t factor = 1;
  if (!unit.empty()) {
    const size_t power = std::string_view("KMGT").find(unit.front());
    const std::string_view base = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (!base.empty() && base != "B" && base != "IB")) {
      return InvalidArgument("has an unknown unit");
    }
    for (size_t i = 0; i <= power; ++i) factor *= base == "B" ? 1000 : 1024;
  }
  TANDEM_ASSIGN_OR_RETURN(const int64_t number, ParseInteger(text));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(number, factor, &bytes)) return InvalidArgument("is too large");
  return bytes;
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 100 ? 1 : 0, kUnits[unit]);
}

OptionValues::OptionValues(std::span<const OptionSpec> specs) : specs_(specs) {
  for (const OptionSpec& spec : specs) {
    auto& values = values_[spec.name];
    if (spec.default_value.empty()) continue;
    TANDEM_CHECK(CheckValue(spec, spec.default_value).ok(), spec.name);
    values.emplace_back(spec.default_value);
  }
}

const OptionSpec* OptionValues::Find(std::string_view name) const {
  for (const OptionSpec& spec : specs_) {
    if (spec.name == name || IsChoice(name, spec.alias)) return &spec;
  }
  return nullptr;
}

Status OptionValues::Set(std::string_view name, const std::vector<std::string>& values,
                         std::string_view where) {
  const OptionSpec* spec = Find(name);
  if (spec == nullptr) {
    std::vector<std::string_view> names;
    for (const OptionSpec& known : specs_) {
      names.push_back(known.name);
      if (known.alias.empty()) continue;
      for (const std::string_view alias : SplitAt('|', known.alias)) names.push_back(alias);
    }
    const std::string_view closest = ClosestName(name, names);
    return InvalidArgument(
        fmt::format("{}: there is no such option{}", where,
                    closest.empty() ? "" : fmt::format("; did you mean {}?", DashedName(closest))));
  }
  if (spec->type != OptionType::kTexts && values.size() != 1) {
    return InvalidArgument(fmt::format("{}: takes one value, got {}", where, values.size()));
  }
  for (const std::string& value : values) {
    if (const Status status = CheckValue(*spec, value); !status.ok()) {
      if (value.empty()) {
        return InvalidArgument(fmt::format("{}: the value is empty; it takes {}, or leave it out",
                                           where, AllowedValues(*spec)));
      }
      return InvalidArgument(fmt::format("{}: '{}' {}; it takes {}", where, value, status.message(),
                                         AllowedValues(*spec)));
    }
  }
  values_[spec->name] = values;
  set_[spec->name] = true;
  return {};
}

Status OptionValues::ReadEnvironment() {
  for (const OptionSpec& spec : specs_) {
    if (IsSet(spec)) continue;
    const std::string variable = EnvironmentName(spec);
    if (const char* value = std::getenv(variable.c_str()); value != nullptr) {
      TANDEM_RETURN_IF_ERROR(Set(spec.name, {value}, variable));
    }
  }
  return {};
}

bool OptionValues::IsSet(const OptionSpec& spec) const { return set_.contains(spec.name); }

const std::vector<std::string>& OptionValues::Values(const OptionSpec& spec,
                                                     OptionType type) const {
  TANDEM_CHECK(spec.type == type, spec.name);
  const auto values = values_.find(spec.name);
  TANDEM_CHECK(values != values_.end(), spec.name);  // of another verb
  return values->second;
}

bool OptionValues::Flag(const OptionSpec& spec) const {
  const auto& values = Values(spec, OptionType::kFlag);
  return !values.empty() && Among(values.front(), kTrueWords);
}

int64_t OptionValues::Int(const OptionSpec& spec) const {
  const bool bytes = spec.type == OptionType::kBytes;
  const auto& values = Values(spec, bytes ? OptionType::kBytes : OptionType::kInt);
  if (values.empty()) return 0;
  return bytes ? *ParseBytes(values.front()) : *ParseInteger(values.front());
}

double OptionValues::Float(const OptionSpec& spec) const {
  const auto& values = Values(spec, OptionType::kFloat);
  return values.empty() ? 0.0 : *ParseNumber(values.front());
}

const std::string& OptionValues::Text(const OptionSpec& spec) const {
  TANDEM_CHECK(spec.type == OptionType::kText || spec.type == OptionType::kOptionalText, spec.name);
  return Given(spec);
}

const std::string& OptionValues::Given(const OptionSpec& spec) const {
  static const std::string empty;
  const auto& values = Values(spec, spec.type);
  return values.empty() ? empty : values.front();
}

const std::vector<std::string>& OptionValues::Texts(const OptionSpec& spec) const {
  return Values(spec, OptionType::kTexts);
}

std::vector<int64_t> OptionValues::Ints(const OptionSpec& spec) const {
  std::vector<int64_t> numbers;
  for (const std::string& list : Values(spec, OptionType::kInts)) {
    for (const std::string_view word : SplitAt(',', list)) numbers.push_back(*ParseInteger(word));
  }
  return numbers;
}

std::vector<double> OptionValues::Floats(const OptionSpec& spec) const {
  std::vector<double> numbers;
  for (const std::string& list : Values(spec, OptionType::kFloats)) {
    for (const std::string_view word : SplitAt(',', list)) numbers.push_back(*ParseNumber(word));
  }
  return numbers;
}

}  // namespace tandem
