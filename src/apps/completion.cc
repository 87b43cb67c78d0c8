#include "apps/help.h"
#include "apps/verbs.h"

namespace tandem::apps {
namespace {

struct CompletionOptions {
  std::string (*page)() = BashCompletion;
};

const BoundOptions<CompletionOptions>& Rows() {
  static const BoundOptions<CompletionOptions> rows({
      BindChoice<CompletionOptions, &CompletionOptions::page>(
          {.name = "shell",
           .meaning = "bash or zsh: the completion script; markdown: the reference of all verbs",
           .position = Position::kOptional},
          {{"bash", BashCompletion}, {"zsh", ZshCompletion}, {"markdown", CommandLineReference}}),
  });
  return rows;
}

Status Run(const OptionValues& values, Console& console) {
  console.SayPart(Rows().Read(values).page());
  return {};
}

}  // namespace

Command CompletionCommand() {
  return {.name = "completion",
          .summary = "Print a shell completion script",
          .examples = "  source <(tandem completion)\n",
          .options = Join({Rows().specs()}),
          .run = Run};
}

}  // namespace tandem::apps
