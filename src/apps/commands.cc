#include "apps/command.h"
#include "apps/verbs.h"

namespace tandem::apps {

std::span<const Command> Commands() {
  static const std::vector<Command> commands = {CompletionCommand()};
  return commands;
}

}  // namespace tandem::apps
