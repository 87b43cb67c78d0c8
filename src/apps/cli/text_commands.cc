#include "apps/cli/text_verbs.h"
#include "apps/cli/verbs.h"

namespace tandem::apps {

std::vector<Command> TextCommands() {
  return {ServeCommand(), RunCommand(), EvalCommand(), PartitionCommand()};
}

}  // namespace tandem::apps
