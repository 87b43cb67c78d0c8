#include "apps/help.h"
#include "apps/verbs.h"

namespace tandem::apps {
namespace {

constexpr OptionSpec kOptions[] = {
    {.name = "shell",
     .default_value = "bash",
     .meaning = "bash or zsh: the completion script; markdown: the reference of all verbs",
     .choices = "bash|zsh|markdown"},
};

Status Run(const OptionValues& options, Console& console) {
  const std::string& shell = options.Text("shell");
  console.SayPart(shell == "markdown" ? CommandLineReference() : CompletionScript(shell));
  return {};
}

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .summary = "Print a shell completion script",
          .examples = "  source <(tandem completion)\n",
          .positionals = {{.name = "shell"}},
          .options = Join({kOptions}),
          .run = Run};
}

}  // namespace tandem::apps
