// BoundOptions: rows of the option table that each know the field they set, so that an option's
// name, range, meaning, default and effect stand in one place. The default is the field's initial
// value in its struct. Constant after construction; any thread.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/options.h"

namespace tandem {

template <typename Options>
struct BoundOption {
  using Setter =
      std::function<void(const OptionValues& values, const OptionSpec& spec, Options& options)>;

  BoundOption(const OptionSpec& row, Setter setter) : spec(row), set(std::move(setter)) {}

  OptionSpec spec;
  Setter set;
  // The field as the option's value would be given; null: more than one field.
  std::function<std::string(const Options& options)> given;
  const void* field = nullptr;  // the address of the field's FieldTag; null: more than one field
  std::string default_text;     // of the field; the spec's own goes over it
  std::string choices_text;     // as above
};

// The value of an option as a field of type T; Nanos are given in seconds.
template <typename T>
T ValueOf(const OptionValues& values, const OptionSpec& spec) {
  if constexpr (std::is_same_v<T, Nanos>) {
    return std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(values.Float(spec)));
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>) {
    return values.Text(spec);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    return values.Texts(spec);
  } else if constexpr (std::is_same_v<T, std::vector<int32_t>>) {
    const std::vector<int64_t> numbers = values.Ints(spec);
    return T(numbers.begin(), numbers.end());
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return values.Floats(spec);
  } else if constexpr (std::is_same_v<T, bool>) {
    return values.Flag(spec);
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(values.Float(spec));
  } else {
    static_assert(std::is_integral_v<T>);
    return static_cast<T>(values.Int(spec));
  }
}

namespace bound_options_detail {

template <auto kField>
inline constexpr char kFieldTag = 0;

template <typename T>
struct WithoutOptional {
  using Type = T;
};
template <typename T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

template <typename Options, auto kField>
using FieldType = std::remove_cvref_t<decltype(std::invoke(kField, std::declval<Options&>()))>;

template <typename T>
constexpr OptionType OptionTypeOf(OptionType asked) {
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return OptionType::kTexts;
  if constexpr (std::is_same_v<T, std::vector<int32_t>>) return OptionType::kInts;
  if constexpr (std::is_same_v<T, std::vector<double>>) return OptionType::kFloats;
  if constexpr (std::is_same_v<T, bool>) return OptionType::kFlag;
  if constexpr (std::is_same_v<T, Nanos> || std::is_floating_point_v<T>) return OptionType::kFloat;
  if constexpr (std::is_integral_v<T>) {
    return asked == OptionType::kBytes ? OptionType::kBytes : OptionType::kInt;
  }
  return asked;
}

// A field's value as its option would be given.
template <typename T>
std::string TextOf(const T& value) {
  if constexpr (std::is_same_v<T, Nanos>) {
    return fmt::format("{}", InSeconds(value));
  } else if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::filesystem::path>) {
    return std::string(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "";  // a flag is off unless it is named
  } else if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else {
    return fmt::format("{}", fmt::join(value, ","));
  }
}

}  // namespace bound_options_detail

// The option of one field. kField is a pointer to a member, or a function from Options& to the
// field. The type of the option follows from the field's; Nanos are given in seconds. An optional
// field stays empty when its option is left out and the row names no default.
template <typename Options, auto kField>
BoundOption<Options> BindOption(OptionSpec spec) {
  namespace detail = bound_options_detail;
  using Field = detail::FieldType<Options, kField>;
  using Value = typename detail::WithoutOptional<Field>::Type;
  spec.type = detail::OptionTypeOf<Value>(spec.type);
  BoundOption<Options> bound(
      spec, [](const OptionValues& values, const OptionSpec& row, Options& options) {
        if (!std::is_same_v<Field, Value> && values.Given(row).empty()) return;
        std::invoke(kField, options) = ValueOf<Value>(values, row);
      });
  bound.field = &detail::kFieldTag<kField>;
  bound.given = [](const Options& options) {
    Options copy = options;  // a function to a field takes Options&
    const Field field = std::invoke(kField, copy);
    if constexpr (std::is_same_v<Field, Value>) {
      return detail::TextOf<Value>(field);
    } else {
      return field ? detail::TextOf<Value>(*field) : std::string();
    }
  };
  if constexpr (std::is_same_v<Field, Value>) bound.default_text = bound.given(Options());
  return bound;
}

// The option of one field that takes one of a few values, each with its word.
template <typename Options, auto kField>
BoundOption<Options> BindChoice(
    OptionSpec spec,
    std::vector<std::pair<std::string_view, bound_options_detail::FieldType<Options, kField>>>
        choices) {
  BoundOption<Options> bound(spec, nullptr);
  for (const auto& [word, value] : choices) {
    bound.choices_text += (bound.choices_text.empty() ? "" : "|") + std::string(word);
  }
  bound.given = [choices](const Options& options) {
    Options copy = options;
    for (const auto& [word, value] : choices) {
      if (value == std::invoke(kField, copy)) return std::string(word);
    }
    return std::string();
  };
  bound.default_text = bound.given(Options());
  bound.field = &bound_options_detail::kFieldTag<kField>;
  bound.set = [choices = std::move(choices)](const OptionValues& values, const OptionSpec& row,
                                             Options& options) {
    for (const auto& [word, value] : choices) {
      if (word == values.Text(row)) std::invoke(kField, options) = value;
    }
  };
  return bound;
}

template <typename Options>
class BoundOptions {
 public:
  explicit BoundOptions(std::vector<BoundOption<Options>> rows) : rows_(std::move(rows)) {
    for (const BoundOption<Options>& row : rows_) {
      OptionSpec& spec = specs_.emplace_back(row.spec);
      if (spec.default_value.empty()) spec.default_value = row.default_text;
      if (spec.choices.empty()) spec.choices = row.choices_text;
    }
  }
  BoundOptions(const BoundOptions&) = delete;  // specs_ looks into rows_
  BoundOptions& operator=(const BoundOptions&) = delete;

  std::span<const OptionSpec> specs() const { return specs_; }

  // The row of a field: its name, and whether it was given.
  template <auto kField>
  const OptionSpec& RowOf() const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].field == &bound_options_detail::kFieldTag<kField>) return specs_[i];
    }
    TANDEM_CHECK(false, "no row sets this field");
  }

  // In the order of the rows.
  void Apply(const OptionValues& values, Options& options) const {
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i].set(values, specs_[i], options);
  }
  // Gives options that were left out their values on a GPU.
  void ApplyGpuDefaults(const OptionValues& values, Options& options) const {
    OptionValues defaults(specs_);
    for (size_t i = 0; i < rows_.size(); ++i) {
      const OptionSpec& spec = specs_[i];
      if (spec.gpu_default.empty() || values.IsSet(spec)) continue;
      const Status set = defaults.Set(spec.name, {std::string(spec.gpu_default)}, spec.name);
      TANDEM_CHECK(set.ok(), "a row refuses its own default on a GPU");
      rows_[i].set(defaults, spec, options);
    }
  }
  // Refuses fields that no command line could have set: INVALID_ARGUMENT with the option's name.
  Status Check(const Options& options) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::string given = rows_[i].given ? rows_[i].given(options) : std::string();
      if (given.empty() || CheckValue(specs_[i], given).ok()) continue;
      return InvalidArgument(fmt::format("{} must be {}; it is {}", specs_[i].name,
                                         AllowedValues(specs_[i]), given))
          .WithField(specs_[i].name);
    }
    return {};
  }
  Options Read(const OptionValues& values) const {
    Options options;
    Apply(values, options);
    return options;
  }

 private:
  const std::vector<BoundOption<Options>> rows_;
  std::vector<OptionSpec> specs_;
};

}  // namespace tandem
