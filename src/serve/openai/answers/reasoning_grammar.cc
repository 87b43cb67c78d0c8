#include "serve/openai/answers/reasoning_grammar.h"

#include <fmt/format.h>

#include <optional>

#include "serve/json.h"

namespace tandem::serve::openai {

std::string MarkSymbol(std::string_view mark, const TextCodec& codec) {
  if (const std::optional<int32_t> token = codec.SpecialToken(mark)) {
    return fmt::format("<[{}]> ", *token);
  }
  std::string quoted;
  AppendJsonString(mark, quoted);
  return quoted + " ";
}

std::string ThoughtRule(const ReasoningFormat& format, bool is_open, const TextCodec& codec) {
  const auto is_special = [&](std::string_view mark) {
    return codec.SpecialToken(mark).has_value();
  };
  const std::string first = is_open ? "" : "WS? " + MarkSymbol(format.begin, codec);
  const std::string end = MarkSymbol(format.end, codec);
  if (is_special(format.end)) return fmt::format("thought: {}ANY {}\n", first, end);
  if (is_open || !is_special(format.begin)) {
    return fmt::format("thought[lazy]: {}ANY {}\n", first, end);
  }
  // A token is no part of a terminal.
  return fmt::format("thought: {}thought_end\nthought_end[lazy]: ANY {}\n", first, end);
}

std::shared_ptr<const OutputGrammar> AfterReasoning(const OutputGrammar& grammar,
                                                    const ReasoningFormat& format,
                                                    const TextCodec& codec) {
  auto after = std::make_shared<OutputGrammar>(grammar);
  after->thought = ThoughtRule(format, /*is_open=*/true, codec) + "ANY: /(.|\\n)*/\n";
  return after;
}

}  // namespace tandem::serve::openai
