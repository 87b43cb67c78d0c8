#include "apps/command.h"
#include "apps/verbs.h"

namespace tandem::apps {

namespace {

// Every verb has these.
constexpr OptionSpec kCommonOptions[] = {
    {.name = "json",
     .type = OptionType::kFlag,
     .meaning = "Print one JSON object on stdout instead of lines for people",
     .group = "Output"},
    {.name = "log_level",
     .default_value = "warning",
     .meaning = "Log lines of this level and above, on stderr",
     .group = "Output",
     .choices = "debug|info|warning|error|off"},
    {.name = "log_format",
     .default_value = "text",
     .meaning = "Log lines as text or as one JSON object a line",
     .group = "Output",
     .choices = "text|json"},
};

}  // namespace

std::span<const Command> Commands() {
  static const std::vector<Command> commands = [] {
    std::vector<Command> all = TextCommands();
    for (Command (*make)() : {BenchCommand, ConvertCommand, BuildCommand, InspectCommand,
                              PlanCommand, DoctorCommand, CompletionCommand}) {
      all.push_back(make());
    }
    for (Command& command : all) command.options = Join({command.options, kCommonOptions});
    return all;
  }();
  return commands;
}

}  // namespace tandem::apps
