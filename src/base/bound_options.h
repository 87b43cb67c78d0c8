// BoundOptions: rows of the option table that each know the field they set, so that an option's
// name, range, meaning, default and effect stand in one place. The default is the field's initial
// value in its struct. Constant after construction; any thread.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <functional>
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
  using Setter = void (*)(const OptionValues& values, std::string_view name, Options& options);

  BoundOption(const OptionSpec& row, Setter setter) : spec(row), set(setter) {}

  OptionSpec spec;
  Setter set;
  std::string default_text;  // of the field; the spec's own goes over it
};

// The option of one field. kField is a pointer to a member, or a function from Options& to the
// field. The type of the option follows from the field's; Nanos are given in seconds.
template <typename Options, auto kField>
BoundOption<Options> BindOption(OptionSpec spec) {
  Options defaults;
  const auto& value = std::invoke(kField, defaults);
  using Value = std::remove_cvref_t<decltype(value)>;
  BoundOption<Options> bound(spec, nullptr);
  if constexpr (std::is_same_v<Value, Nanos>) {
    bound.spec.type = OptionType::kFloat;
    bound.default_text = fmt::format("{}", std::chrono::duration<double>(value).count());
    bound.set = [](const OptionValues& values, std::string_view name, Options& options) {
      std::invoke(kField, options) =
          std::chrono::duration_cast<Nanos>(std::chrono::duration<double>(values.Float(name)));
    };
  } else if constexpr (std::is_same_v<Value, std::string> ||
                       std::is_same_v<Value, std::filesystem::path>) {
    bound.default_text = std::string(value);
    bound.set = [](const OptionValues& values, std::string_view name, Options& options) {
      std::invoke(kField, options) = values.Text(name);
    };
  } else if constexpr (std::is_same_v<Value, bool>) {
    bound.spec.type = OptionType::kFlag;
    bound.default_text = value ? "true" : "";  // a flag is off unless it is named
    bound.set = [](const OptionValues& values, std::string_view name, Options& options) {
      std::invoke(kField, options) = values.Flag(name);
    };
  } else if constexpr (std::is_floating_point_v<Value>) {
    bound.spec.type = OptionType::kFloat;
    bound.default_text = fmt::format("{}", value);
    bound.set = [](const OptionValues& values, std::string_view name, Options& options) {
      std::invoke(kField, options) = static_cast<Value>(values.Float(name));
    };
  } else {
    static_assert(std::is_integral_v<Value>);
    if (spec.type != OptionType::kBytes) bound.spec.type = OptionType::kInt;
    bound.default_text = fmt::format("{}", value);
    bound.set = [](const OptionValues& values, std::string_view name, Options& options) {
      std::invoke(kField, options) = static_cast<Value>(values.Int(name));
    };
  }
  return bound;
}

template <typename Options>
class BoundOptions {
 public:
  explicit BoundOptions(std::vector<BoundOption<Options>> rows) : rows_(std::move(rows)) {
    for (const BoundOption<Options>& row : rows_) {
      specs_.push_back(row.spec);
      if (row.spec.default_value.empty()) specs_.back().default_value = row.default_text;
    }
  }
  BoundOptions(const BoundOptions&) = delete;  // specs_ looks into rows_
  BoundOptions& operator=(const BoundOptions&) = delete;

  std::span<const OptionSpec> specs() const { return specs_; }

  // In the order of the rows.
  void Apply(const OptionValues& values, Options& options) const {
    for (const BoundOption<Options>& row : rows_) row.set(values, row.spec.name, options);
  }

 private:
  const std::vector<BoundOption<Options>> rows_;
  std::vector<OptionSpec> specs_;
};

}  // namespace tandem
