// The only file that knows CLI11: it turns the rows of the commands into a parser, and errors into
// sentences and exit codes.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "apps/command.h"
#include "apps/version.h"
#include "base/log.h"

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

// "--max_batch_size,--max-batch-size": users type either.
std::string CliNames(const OptionSpec& spec) {
  const auto with_dashes = [](std::string_view name) {
    std::string dashed(name);
    std::ranges::replace(dashed, '_', '-');
    return dashed;
  };
  std::string names = "--" + std::string(spec.name);
  if (with_dashes(spec.name) != spec.name) names += ",--" + with_dashes(spec.name);
  if (spec.alias.starts_with('-')) {
    names += "," + std::string(spec.alias);
  } else if (!spec.alias.empty()) {
    names += ",--" + std::string(spec.alias);
    if (with_dashes(spec.alias) != spec.alias) names += ",--" + with_dashes(spec.alias);
  }
  return names;
}

std::string TypeName(const OptionSpec& spec) {
  if (!spec.choices.empty()) return std::string(spec.choices);
  switch (spec.type) {
    case OptionType::kFlag:
      return "[true|false]";
    case OptionType::kInt:
      return "INT";
    case OptionType::kFloat:
      return "NUMBER";
    case OptionType::kBytes:
      return "BYTES";
    case OptionType::kText:
      return "TEXT";
    case OptionType::kTexts:
      return "TEXT ...";
  }
  return "";
}

struct ParsedOption {
  const OptionSpec* spec;
  std::vector<std::string> values;
  CLI::Option* option;
};

// One verb's parser and what it read.
struct ParsedCommand {
  const Command* command;
  std::vector<OptionSpec> specs;
  std::vector<std::unique_ptr<ParsedOption>> options;
  CLI::App* app;
};

void AddOption(CLI::App& app, ParsedCommand& parsed, const OptionSpec& spec) {
  auto read = std::make_unique<ParsedOption>(ParsedOption{&spec, {}, nullptr});
  const bool positional = std::ranges::any_of(
      parsed.command->positionals, [&](const Positional& p) { return p.name == spec.name; });
  const std::string names = (positional ? std::string(spec.name) + "," : "") + CliNames(spec);
  std::string help(spec.meaning);
  if (!spec.default_value.empty()) help += fmt::format(" [{}]", spec.default_value);
  read->option = app.add_option(names, read->values, help)
                     ->group(std::string(spec.group))
                     ->type_name(TypeName(spec));
  if (spec.type == OptionType::kTexts) {
    read->option->take_all()->expected(1, 1 << 20);
  } else if (spec.type == OptionType::kFlag) {
    // A flag may stand alone or carry a word.
    read->option->expected(0, 1)->default_str("true");
  } else {
    read->option->expected(1);
  }
  // Else a value in brackets would be taken apart, and a position would swallow the next one's
  // value.
  read->option->allow_extra_args(false);
  if (spec.type != OptionType::kTexts && !positional) read->option->take_last();
  for (const Positional& p : parsed.command->positionals) {
    if (p.name == spec.name && p.required) read->option->required();
  }
  parsed.options.push_back(std::move(read));
}

std::string Footer(const Command& command) {
  return fmt::format(
      "\nEvery option can be given as an environment variable too: --max_batch_size as "
      "TANDEM_MAX_BATCH_SIZE.\n{}{}",
      command.examples.empty() ? "" : "\nExamples:\n", command.examples);
}

Status Run(const ParsedCommand& parsed) {
  OptionValues values(parsed.specs);
  for (const auto& read : parsed.options) {
    if (read->option->count() == 0) continue;
    std::vector<std::string> given = read->values;
    if (given.empty()) given = {"true"};
    TANDEM_RETURN_IF_ERROR(
        values.Set(read->spec->name, given, fmt::format("--{}", read->spec->name)));
  }
  TANDEM_RETURN_IF_ERROR(values.ReadEnvironment());
  static const std::map<std::string_view, LogLevel> levels = {{"debug", LogLevel::kDebug},
                                                              {"info", LogLevel::kInfo},
                                                              {"warning", LogLevel::kWarning},
                                                              {"error", LogLevel::kError},
                                                              {"off", LogLevel::kOff}};
  ConfigureLog(levels.at(values.Text("log_level")),
               values.Text("log_format") == "json" ? LogFormat::kJson : LogFormat::kText);
  Console console(values.Flag("json"));
  return parsed.command->run(values, console);
}

void BuildParser(CLI::App& app, std::vector<std::unique_ptr<ParsedCommand>>& commands) {
  app.set_version_flag("--version", VersionLine());
  app.require_subcommand(1);
  app.footer(
      "Try it: tandem serve, then follow the curl line it prints.\n"
      "`tandem VERB --help` tells the options of a verb.");
  for (const Command& command : Commands()) {
    auto parsed = std::make_unique<ParsedCommand>();
    parsed->command = &command;
    parsed->specs = Join({command.options, kCommonOptions});
    parsed->app = app.add_subcommand(std::string(command.name), std::string(command.summary));
    parsed->app->footer(Footer(command));
    for (const OptionSpec& spec : parsed->specs) AddOption(*parsed->app, *parsed, spec);
    commands.push_back(std::move(parsed));
  }
}

}  // namespace

std::vector<OptionSpec> Join(std::initializer_list<std::span<const OptionSpec>> parts) {
  std::vector<OptionSpec> all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

int Main(int argc, const char* const* argv) {
  CLI::App app("Tandem serves large language models, a small draft model riding with the target.",
               "tandem");
  std::vector<std::unique_ptr<ParsedCommand>> commands;
  BuildParser(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : ExitCode(Code::kInvalidArgument);
  }
  for (const auto& parsed : commands) {
    if (!parsed->app->parsed()) continue;
    const Status status = Run(*parsed);
    if (!status.ok()) {
      std::fprintf(stderr, "tandem %s: %s\n", std::string(parsed->command->name).c_str(),
                   status.message().c_str());
    }
    return ExitCode(status.code());
  }
  return ExitCode(Code::kInvalidArgument);
}

std::string CompletionScript(std::string_view shell) {
  std::string verbs;
  std::string cases;
  for (const Command& command : Commands()) {
    verbs += std::string(verbs.empty() ? "" : " ") + std::string(command.name);
    std::string names;
    for (const OptionSpec& spec : Join({command.options, kCommonOptions})) {
      names += fmt::format("{}--{}", names.empty() ? "" : " ", spec.name);
    }
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name, names);
  }
  const std::string body = fmt::format(
      "_tandem() {{\n"
      "  local words=\"{0} --help --version\"\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{1}  esac\n"
      "  COMPREPLY=($(compgen -o default -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n"
      "}}\n"
      "complete -o default -F _tandem tandem\n",
      verbs, cases);
  // zsh takes bash's functions through its own adapter.
  return shell == "zsh" ? "autoload -U +X bashcompinit && bashcompinit\n" + body : body;
}

std::string CommandLineReference() {
  std::string page = "# Command line\n\nMade by `tandem completion --shell markdown`.\n";
  for (const Command& command : Commands()) {
    page += fmt::format(
        "\n## tandem {}\n\n{}\n\n| option | value | default | meaning |\n|---|---|---|---|\n",
        command.name, command.summary);
    for (const OptionSpec& spec : Join({command.options, kCommonOptions})) {
      std::string type = TypeName(spec);
      for (size_t at = 0; (at = type.find('|', at)) != std::string::npos; at += 2) {
        type.replace(at, 1, "\\|");
      }
      page += fmt::format("| `--{}` | {} | {} | {} |\n", spec.name, type, spec.default_value,
                          spec.meaning);
    }
    if (!command.examples.empty()) page += fmt::format("\n```sh\n{}```\n", command.examples);
  }
  return page;
}

}  // namespace tandem::apps
