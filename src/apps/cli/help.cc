#include "apps/cli/help.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <vector>

namespace tandem::apps {
namespace {

constexpr size_t kMeaningColumn = 34;
constexpr size_t kSummaryColumn = 14;
constexpr size_t kNarrow = 72;  // below this the meaning gets separate lines
constexpr size_t kShortChoices = 20;

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
      return "BYTES[KB|KiB|...]";
    case OptionType::kText:
      return "TEXT";
    case OptionType::kTexts:
      return "TEXT ...";
    case OptionType::kOptionalText:
      return "[TEXT]";
    case OptionType::kInts:
      return "INT,...";
    case OptionType::kFloats:
      return "NUMBER,...";
  }
  return "";
}

// "0.5", or "0.5; 0.9 on a GPU".
std::string Default(const OptionSpec& spec) {
  std::string text(spec.default_value);
  if (!spec.gpu_default.empty()) text += fmt::format("; {} on a GPU", spec.gpu_default);
  return text;
}

// Breaks `text` at its spaces; every line except the first begins with `indent` spaces. `used`:
// number of characters already on the first line.
std::string Wrapped(std::string_view text, size_t width, size_t indent, size_t used) {
  std::string out;
  bool line_is_empty = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t needed = word.size() + (line_is_empty ? 0 : 1);
    if (!line_is_empty && used + needed > width) {
      out += '\n';
      out.append(indent, ' ');
      used = indent;
      line_is_empty = true;
    }
    if (!line_is_empty) out += " ";
    used += word.size() + (line_is_empty ? 0 : 1);
    out += word;
    line_is_empty = false;
  }
  return out;
}

// A name on the left and its meaning on the right, or below it if there is no room.
std::string Entry(std::string_view left, std::string_view meaning, size_t width,
                  size_t meaning_column) {
  std::string line = "  " + std::string(left);
  const bool below = width < kNarrow || line.size() + 2 > meaning_column;
  const size_t column = width < kNarrow ? 6 : meaning_column;
  if (below) {
    line += '\n';
    line.append(column, ' ');
  } else {
    line.resize(column, ' ');
  }
  return line + Wrapped(meaning, width, column, column) + "\n";
}

std::string OptionEntry(const OptionSpec& spec, size_t width) {
  const bool short_choices = spec.choices.size() <= kShortChoices;
  const std::string left =
      fmt::format("--{} {}", spec.name, short_choices ? TypeName(spec) : "TEXT");
  std::string meaning(spec.meaning);
  if (!short_choices) {
    std::string words(spec.choices);
    for (size_t at = 0; (at = words.find('|', at)) != std::string::npos; at += 2) {
      words.replace(at, 1, ", ");
    }
    meaning += ": " + words;
  }
  if (const std::string text = Default(spec); !text.empty()) meaning += fmt::format(" [{}]", text);
  if (!spec.alias.empty()) {
    std::string names = (spec.alias.starts_with('-') ? "" : "--") + std::string(spec.alias);
    for (size_t at = 0; (at = names.find('|', at)) != std::string::npos;) {
      const bool has_dash = at + 1 < names.size() && names[at + 1] == '-';
      names.replace(at, 1, has_dash ? ", " : ", --");
    }
    meaning += fmt::format(" (also {})", names);
  }
  return Entry(left, meaning, width, kMeaningColumn);
}

std::string Usage(const Command& command) {
  std::string usage = fmt::format("Usage: tandem {}", command.name);
  for (const OptionSpec& spec : command.options) {
    if (spec.position == Position::kNamedOnly) continue;
    std::string name;
    for (const char c : spec.name) {
      name += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    usage += spec.position == Position::kRequired ? " " + name : " [" + name + "]";
  }
  return usage + " [OPTIONS]";
}

std::vector<std::string_view> Groups(const Command& command) {
  std::vector<std::string_view> groups;
  for (const OptionSpec& spec : command.options) {
    if (std::ranges::find(groups, spec.group) == groups.end()) groups.push_back(spec.group);
  }
  return groups;
}

// Options that all mean the same are named in one paragraph.
std::string GroupEntries(const Command& command, std::string_view group, size_t width) {
  std::vector<OptionSpec> members;
  std::ranges::copy_if(command.options, std::back_inserter(members),
                       [group](const OptionSpec& spec) { return spec.group == group; });
  const bool alike = members.size() > 1 && std::ranges::all_of(members, [&](const auto& spec) {
                       return spec.meaning == members.front().meaning;
                     });
  std::string entries;
  for (const OptionSpec& spec : members) {
    if (!alike) {
      entries += OptionEntry(spec, width);
    } else {
      entries += fmt::format("{}--{}", entries.empty() ? "" : ", ", spec.name);
    }
  }
  return alike ? "  " + Wrapped(entries, width, 2, 2) + "\n" : entries;
}

}  // namespace

std::string ProgramHelp(size_t width) {
  std::string help =
      Wrapped("Tandem serves large language models, sped up by small draft models.", width, 0, 0);
  help += "\n\nUsage: tandem VERB [OPTIONS]\n\nVerbs:\n";
  for (const Command& command : Commands())
    help += Entry(command.name, command.summary, width, kSummaryColumn);
  help += '\n';
  help += Wrapped(
      "Try it: tandem serve, then follow the curl line it prints. `tandem VERB --help` "
      "lists the options of a verb, `tandem --version` prints the version.",
      width, 0, 0);
  return help + "\n";
}

std::string CommandHelp(const Command& command, size_t width) {
  std::string help = Usage(command) + "\n\n" + Wrapped(command.summary, width, 0, 0) + "\n";
  for (const std::string_view group : Groups(command)) {
    help += fmt::format("\n{}:\n", group) + GroupEntries(command, group, width);
  }
  help += '\n';
  help += Wrapped(
      "Dashes may stand for underscores: --max-batch-size. Every option can be "
      "given as an environment variable too: --max_batch_size as "
      "TANDEM_MAX_BATCH_SIZE.",
      width, 0, 0);
  help += "\n";
  if (!command.examples.empty()) help += fmt::format("\nExamples:\n{}", command.examples);
  return help;
}

std::string BashCompletion() {
  std::string verbs;
  std::string cases;
  for (const Command& command : Commands()) {
    verbs += std::string(verbs.empty() ? "" : " ") + std::string(command.name);
    std::string names;
    for (const OptionSpec& spec : command.options) {
      names += fmt::format("{}--{}", names.empty() ? "" : " ", spec.name);
    }
    cases += fmt::format("    {}) words=\"{}\" ;;\n", command.name, names);
  }
  return fmt::format(
      "_tandem() {{\n"
      "  local words=\"{0} --help --version\"\n"
      "  case \"${{COMP_WORDS[1]}}\" in\n{1}  esac\n"
      "  COMPREPLY=($(compgen -o default -W \"$words\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n"
      "}}\n"
      "complete -o default -F _tandem tandem\n",
      verbs, cases);
}

std::string ZshCompletion() {
  // zsh takes bash's functions through its own adapter.
  return "autoload -U +X bashcompinit && bashcompinit\n" + BashCompletion();
}

std::string CommandLineReference() {
  std::string page =
      "# Command line\n\n"
      "Made by `tandem completion --shell markdown`.\n\n"
      "An option is written `--name value` or `--name=value`; dashes may stand for underscores, "
      "the "
      "last one given\nwins. A flag stands alone or takes `true` or `false` (`enable`, `disable`, "
      "`1`, `0`, `on`, `off`, `yes`, `no`). A word\nthat begins with `--` is never taken as a "
      "value: such a value is written `--name=--value`. An empty value is refused.\nBytes are a "
      "number that may have a unit: KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers "
      "of\n1024; K, M, G, T for short). Every option can be given as an environment variable: "
      "`--max_batch_size` as\n`TANDEM_MAX_BATCH_SIZE`.\n\n"
      "Results go to stdout, everything else to stderr. With `--json` stdout carries JSON alone, "
      "and an error is one JSON\nobject on stderr: "
      "`{\"error\": {\"code\": \"NOT_FOUND\", \"message\": \"...\", \"exit_code\": 3}}`.\n\n"
      "| exit code | meaning |\n|---|---|\n"
      "| 0 | done |\n"
      "| 1 | a fault of Tandem, or something it does not support yet |\n"
      "| 2 | wrong usage or input; the sentence names the option or the field |\n"
      "| 3 | a file or model that does not exist |\n"
      "| 4 | a broken file |\n"
      "| 5 | not possible on this machine as it is: memory, disk, a limit (`ulimit`), a device, a "
      "closed stdout |\n"
      "| 6 | unavailable, cancelled or timed out |\n";
  for (const Command& command : Commands()) {
    page += fmt::format(
        "\n## tandem {}\n\n{}\n\n| option | value | default | meaning |\n|---|---|---|---|\n",
        command.name, command.summary);
    for (const OptionSpec& spec : command.options) {
      std::string type = TypeName(spec);
      for (size_t at = 0; (at = type.find('|', at)) != std::string::npos; at += 2) {
        type.replace(at, 1, "\\|");
      }
      page +=
          fmt::format("| `--{}` | {} | {} | {} |\n", spec.name, type, Default(spec), spec.meaning);
    }
    if (!command.examples.empty()) page += fmt::format("\n```sh\n{}```\n", command.examples);
  }
  return page;
}

}  // namespace tandem::apps
