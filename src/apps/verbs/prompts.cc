#include "apps/verbs/prompts.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/file.h"

namespace tandem::apps {
namespace {

std::string_view WithoutSpaces(std::string_view word) {
  while (word.starts_with(' ') || word.starts_with('\t')) word.remove_prefix(1);
  while (word.ends_with(' ') || word.ends_with('\t')) word.remove_suffix(1);
  return word;
}

Status AppendFile(const std::string& path, std::vector<Prompt>& prompts) {
  const bool csv = path.ends_with(".csv");
  if (!csv && !path.ends_with(".txt")) {
    return InvalidArgument("--input_file: '" + path + "' is neither .txt nor .csv");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> lines, ReadLines(path));
  for (size_t i = 0; i < lines.size(); ++i) {
    if (WithoutSpaces(lines[i]).empty()) continue;
    Prompt prompt{.shown = lines[i], .tokens = {}};
    if (csv) {
      auto tokens = ParseTokenLine(lines[i]);
      if (!tokens.ok()) {
        return tokens.status().Annotate(fmt::format("--input_file: {}, line {}", path, i + 1));
      }
      prompt.tokens = *std::move(tokens);
    }
    prompts.push_back(std::move(prompt));
  }
  return {};
}

}  // namespace

Result<std::vector<int32_t>> ParseTokenLine(std::string_view line) {
  std::vector<int32_t> tokens;
  for (bool more = true; more;) {
    const size_t comma = std::min(line.find(','), line.size());
    const std::string_view word = WithoutSpaces(line.substr(0, comma));
    int32_t token = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), token);
    if (error != std::errc{} || end != word.data() + word.size() || token < 0) {
      return InvalidArgument(fmt::format("'{}' is not a token id", word));
    }
    tokens.push_back(token);
    more = comma < line.size();
    line.remove_prefix(std::min(comma + 1, line.size()));
  }
  return tokens;
}

Result<std::vector<Prompt>> ReadPrompts(const std::vector<std::string>& texts,
                                        const std::string& file) {
  std::vector<Prompt> prompts;
  for (const std::string& text : texts) prompts.push_back({text, {}});
  if (!file.empty()) TANDEM_RETURN_IF_ERROR(AppendFile(file, prompts));
  if (prompts.empty())
    return InvalidArgument("there is no prompt: give --input_text or --input_file");
  return prompts;
}

}  // namespace tandem::apps
