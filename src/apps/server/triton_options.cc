#include "apps/server/triton_options.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "apps/cli/command.h"
#include "serve/kserve/log_settings.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kGroup = "As tritonserver has them";

constexpr OptionSpec Row(std::string_view name, OptionType type, std::string_view meaning) {
  return {.name = name, .type = type, .meaning = meaning, .group = kGroup};
}
constexpr OptionSpec LogSwitch(std::string_view name) {
  return Row(name, OptionType::kFlag,
             "Write log lines of this level; unless given: as --log_level says");
}
constexpr OptionSpec Address(std::string_view name) {
  return Row(name, OptionType::kText, "The address of --host: all ports are on it");
}
constexpr OptionSpec Restriction(std::string_view name) {
  return Row(name, OptionType::kTexts,
             "Refused: a key (--api_key_file) protects everything but health");
}

constexpr OptionSpec kVerbose = Row("log_verbose", OptionType::kOptionalText,
                                    "A level above 0 writes every log line, as --log_level debug");
constexpr OptionSpec kSwitches[] = {LogSwitch("log_info"), LogSwitch("log_warning"),
                                    LogSwitch("log_error")};
constexpr OptionSpec kAddresses[] = {Address("grpc_address"), Address("metrics_address")};
constexpr OptionSpec kAllowHttp =
    Row("allow_http", OptionType::kFlag, "HTTP is always served: false is refused");
constexpr OptionSpec kNoCompletion =
    Row("disable_auto_complete_config", OptionType::kFlag,
        "Always so: a model has the inputs and outputs of its kind");
constexpr OptionSpec kRestrictions[] = {Restriction("http_restricted_api"),
                                        Restriction("grpc_restricted_protocol")};

Result<int64_t> VerboseLevel(const std::string& text) {
  if (text == "true" || text == "false") return text == "true" ? 1 : 0;
  int64_t level = 0;
  const char* const stop = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), stop, level);
  if (error == std::errc() && end == stop && level >= 0) return level;
  return InvalidArgument(
      fmt::format("--{}: '{}' is no level; it takes a number from 0", kVerbose.name, text));
}

}  // namespace

std::span<const OptionSpec> TritonOptionRows() {
  static const std::vector<OptionSpec> rows = Join({{&kVerbose, 1},
                                                    kSwitches,
                                                    kAddresses,
                                                    {&kAllowHttp, 1},
                                                    {&kNoCompletion, 1},
                                                    kRestrictions});
  return rows;
}

// The flags mean what the protocol's log settings do.
Status SetTritonLog(const OptionValues& values) {
  serve::kserve::Parameters settings;
  for (const OptionSpec& row : kSwitches) {
    if (values.IsSet(row)) settings.emplace(row.name, values.Flag(row));
  }
  if (values.IsSet(kVerbose)) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t level, VerboseLevel(values.Text(kVerbose)));
    settings.emplace("log_verbose_level", level);
  }
  return settings.empty() ? Status() : serve::kserve::SetLogSettings(settings);
}

Status CheckTritonOptions(const OptionValues& values, const std::string& host) {
  for (const OptionSpec& row : kAddresses) {
    const std::string& address = values.Text(row);
    if (address.empty() || address == host) continue;
    return InvalidArgument(
        fmt::format("--{} {}: all ports are on one address; give it as --host, which is {}",
                    row.name, address, host));
  }
  if (values.IsSet(kAllowHttp) && !values.Flag(kAllowHttp)) {
    return InvalidArgument(
        fmt::format("--{} false: HTTP is always served, for health and metrics; --api_key_file "
                    "asks for a key on everything but health",
                    kAllowHttp.name));
  }
  // What is open without them must not be accepted as closed.
  for (const OptionSpec& row : kRestrictions) {
    if (!values.IsSet(row)) continue;
    return InvalidArgument(
        fmt::format("--{}: routes cannot be restricted one by one; --api_key_file asks for a key "
                    "on everything but health",
                    row.name));
  }
  return {};
}

}  // namespace tandem::apps
