#include "apps/cli/file_options.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem::apps {

Status SetUnlessSet(OptionValues& values, std::string_view name, const std::string& value,
                    std::string_view where) {
  const OptionSpec* spec = values.Find(name);
  TANDEM_CHECK(spec != nullptr, "a file's key names an option that the verb lacks");
  if (!values.IsSet(*spec)) return values.Set(spec->name, {value}, where);
  const Status status = CheckValue(*spec, value);
  if (status.ok()) return {};
  return InvalidArgument(fmt::format("{}: '{}' {}; it takes {}", where, value, status.message(),
                                     AllowedValues(*spec)));
}

}  // namespace tandem::apps
