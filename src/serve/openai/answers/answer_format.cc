#include "serve/openai/answers/answer_format.h"

namespace tandem::serve::openai {
namespace {

constexpr ToolFormat kToolFormats[] = {
    {.name = "hermes",
     .template_mark = "<tool_call>",
     .begin = "<tool_call>",
     .end = "</tool_call>",
     .arguments = "arguments",
     .open = "\n",
     .between = "\n</tool_call>\n<tool_call>\n",
     .close = "\n</tool_call>"},
    {.name = "mistral",
     .template_mark = "[TOOL_CALLS]",
     .begin = "[TOOL_CALLS]",
     .end = "",
     .arguments = "arguments",
     .open = "[",
     .between = ", ",
     .close = "]",
     .short_ids = true},
    {.name = "llama3",
     .template_mark = "ipython",
     .begin = "<|python_tag|>",
     .end = "",
     .arguments = "parameters",
     .open = "",
     .between = "; ",
     .close = "",
     .may_be_bare = true},
};

constexpr ReasoningFormat kReasoningFormats[] = {
    {.name = "think", .begin = "<think>", .end = "</think>"},
};

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kToolFormats; }
std::span<const ReasoningFormat> ReasoningFormats() { return kReasoningFormats; }

AnswerFormat FindAnswerFormat(std::string_view tools, std::string_view reasoning,
                              std::string_view source) {
  const auto contains = [&](std::string_view text) { return source.find(text) != source.npos; };
  AnswerFormat found;
  for (const ToolFormat& format : kToolFormats) {
    const bool fits = tools == "auto" ? contains(format.template_mark) : tools == format.name;
    if (fits && found.tools == nullptr) found.tools = &format;
  }
  for (const ReasoningFormat& format : kReasoningFormats) {
    const bool fits = reasoning == "auto" ? contains(format.begin) || contains(format.end)
                                          : reasoning == format.name;
    if (fits && found.reasoning == nullptr) found.reasoning = &format;
  }
  return found;
}

}  // namespace tandem::serve::openai
