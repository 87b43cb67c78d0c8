#include "apps/command.h"
#include "apps/verbs.h"

namespace tandem::apps {

std::span<const Command> Commands() {
  static const std::vector<Command> commands = [] {
    std::vector<Command> all = TextCommands();
    for (Command (*make)() : {BenchCommand, ConvertCommand, BuildCommand, InspectCommand,
                              PlanCommand, DoctorCommand, CompletionCommand}) {
      all.push_back(make());
    }
    return all;
  }();
  return commands;
}

}  // namespace tandem::apps
