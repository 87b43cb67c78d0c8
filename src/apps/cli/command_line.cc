// The program from its words to its exit code.
#include <fmt/core.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/cli/arguments.h"
#include "apps/cli/command.h"
#include "apps/cli/exceptions.h"
#include "apps/cli/help.h"
#include "apps/cli/json_text.h"
#include "apps/cli/version.h"
#include "base/printable.h"

namespace tandem::apps {
namespace {

int ExitCode(Code code) {
  switch (code) {
    case Code::kOk:
      return 0;
    case Code::kInternal:
    case Code::kUnimplemented:
      return 1;
    case Code::kInvalidArgument:
    case Code::kUnauthenticated:
      return 2;
    case Code::kNotFound:
      return 3;
    case Code::kDataLoss:
      return 4;
    case Code::kFailedPrecondition:
    case Code::kResourceExhausted:
      return 5;
    case Code::kUnavailable:
    case Code::kCancelled:
    case Code::kDeadlineExceeded:
      return 6;
  }
  return 1;
}

using Words = std::span<const std::string_view>;

// One call of the program: the facts known when it fails.
struct Call {
  std::string name = "tandem";  // includes its verb once that is known
  bool json = false;            // errors are JSON too
};

Result<const Command*> FindCommand(std::string_view verb) {
  std::vector<std::string_view> names;
  for (const Command& command : Commands()) {
    if (command.name == verb) return &command;
    names.push_back(command.name);
  }
  if (verb.starts_with('-')) {
    return InvalidArgument(
        fmt::format("'{}' stands where a verb is expected, as in: tandem run {}", verb, verb));
  }
  const std::string_view closest = ClosestName(verb, names);
  return InvalidArgument(fmt::format(
      "there is no verb '{}'; {}", verb,
      closest.empty() ? "tandem --help lists them" : fmt::format("did you mean {}?", closest)));
}

Status RunVerb(const Command& command, Words words, Call& call) {
  OptionValues values(command.options);
  TANDEM_RETURN_IF_ERROR(ReadArguments(words, values));
  TANDEM_RETURN_IF_ERROR(values.ReadEnvironment());
  const CommonOptions common = CommonOptionRows().Read(values);
  call.json = common.json;
  for (const OptionSpec& spec : command.options) {
    if (spec.position == Position::kRequired && !values.IsSet(spec)) {
      return InvalidArgument(fmt::format("--{}: is required", spec.name));
    }
  }
  ConfigureLog(common.log_level, common.log_format);
  Console console(call.json, common.log_format);
  TANDEM_RETURN_IF_ERROR(command.run(values, console));
  return console.status();
}

Status RunProgram(Words words, Call& call) {
  Console console(/*json=*/false);
  if (words.empty()) {
    std::fputs(ProgramHelp(Console::Width()).c_str(), stderr);
    return InvalidArgument("a verb is missing");
  }
  if (words.front() == "--help" || words.front() == "-h") {
    console.SayPart(ProgramHelp(Console::Width()));
    return console.status();
  }
  if (words.front() == "--version") {
    console.Say(VersionLine());
    return console.status();
  }
  TANDEM_ASSIGN_OR_RETURN(const Command* command, FindCommand(words.front()));
  words = words.subspan(1);
  call.name += fmt::format(" {}", command->name);
  if (AsksForHelp(words)) {
    console.SayPart(CommandHelp(*command, Console::Width()));
    return console.status();
  }
  return RunVerb(*command, words, call);
}

// main() ignores the signal that other programs end by.
[[noreturn]] void EndByBrokenPipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  std::_Exit(128 + SIGPIPE);  // where it is blocked
}

// Resources are cleaned up on the way here.
Status RunGuarded(Words words, Call& call) {
  try {
    return RunProgram(words, call);
  } catch (...) {
    return StatusOfException(std::current_exception());
  }
}

void Report(const Call& call, const Status& status) {
  std::string line = Printable(call.name + ": " + status.message());
  if (call.json) {
    const nlohmann::ordered_json error = {{"code", CodeName(status.code())},
                                          {"message", status.message()},
                                          {"exit_code", ExitCode(status.code())}};
    line = JsonText(nlohmann::ordered_json{{"error", error}});
  }
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace

std::vector<OptionSpec> Join(std::initializer_list<std::span<const OptionSpec>> parts) {
  std::vector<OptionSpec> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

int Main(int argc, const char* const* argv) {
  std::vector<std::string_view> words(argv + 1, argv + std::max(argc, 1));
  // Under this name the program is what its users know: a server without verbs.
  if (argc > 0 && std::filesystem::path(argv[0]).filename() == "tritonserver") {
    words.insert(words.begin(), "serve");
  }
  Call call;
  // Until the options have been read.
  call.json = std::ranges::find(words, "--json") != words.end();
  const Status status = RunGuarded(words, call);
  // As every tool in a pipe whose reader has seen enough.
  if (status.code() == Code::kCancelled && status.field() == "stdout") EndByBrokenPipe();
  if (!status.ok()) Report(call, status);
  return ExitCode(status.code());
}

}  // namespace tandem::apps
