#include "apps/cli/help.h"
#include "apps/cli/verbs.h"
#include "apps/lmi/keys.h"

namespace tandem::apps {
namespace {

struct CompletionOptions {
  std::string (*page)() = BashCompletion;
};

const BoundOptions<CompletionOptions>& Rows() {
  static const BoundOptions<CompletionOptions> rows({
      BindChoice<CompletionOptions, &CompletionOptions::page>(
          {.name = "shell",
           .meaning =
               "bash or zsh: the completion script; markdown: the reference of all verbs; lmi: "
               "the keys of SageMaker's LMI containers",
           .position = Position::kOptional},
          {{"bash", BashCompletion},
           {"zsh", ZshCompletion},
           {"markdown", CommandLineReference},
           {"lmi", LmiKeysMarkdown}}),
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
