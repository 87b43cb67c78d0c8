#include "apps/cli/command.h"
#include "apps/cli/verbs.h"

namespace tandem::apps {

const BoundOptions<CommonOptions>& CommonOptionRows() {
  constexpr std::string_view kOutput = "Output";
  static const BoundOptions<CommonOptions> rows({
      BindOption<CommonOptions, &CommonOptions::json>(
          {.name = "json",
           .meaning = "Print one JSON object on stdout instead of lines for people",
           .group = kOutput}),
      BindChoice<CommonOptions, &CommonOptions::log_level>(
          {.name = "log_level",
           .meaning = "Log lines of this level and above, on stderr",
           .group = kOutput},
          {{"debug", LogLevel::kDebug},
           {"info", LogLevel::kInfo},
           {"warning", LogLevel::kWarning},
           {"error", LogLevel::kError},
           {"off", LogLevel::kOff}}),
      BindChoice<CommonOptions, &CommonOptions::log_format>(
          {.name = "log_format",
           .meaning = "Log lines as text, whose times are ISO 8601, or as one JSON object per "
                      "line; default and ISO8601, as Triton has them, mean text",
           .group = kOutput},
          {{"text", LogFormat::kText},
           {"json", LogFormat::kJson},
           {"default", LogFormat::kText},
           {"ISO8601", LogFormat::kText}}),
  });
  return rows;
}

std::span<const Command> Commands() {
  static const std::vector<Command> commands = [] {
    std::vector<Command> all = TextCommands();
    for (Command (*make)() : {BenchCommand, QuantizeCommand, ConvertCommand, BuildCommand,
                              InspectCommand, PlanCommand, DoctorCommand, CompletionCommand}) {
      all.push_back(make());
    }
    for (Command& command : all)
      command.options = Join({command.options, CommonOptionRows().specs()});
    return all;
  }();
  return commands;
}

}  // namespace tandem::apps
