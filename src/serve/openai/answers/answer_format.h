// How a model marks tool calls and reasoning in its answers: tables of formats, and the ones that a
// chat template uses. Constants and pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "serve/text_request.h"

namespace tandem::serve::openai {

struct ToolFormat {
  std::string_view name;
  std::string_view template_mark;  // text of the chat templates of such models
  std::string_view begin;          // before a call
  std::string_view end;            // after each call; empty: where its JSON ends
  std::string_view arguments;      // the member with the arguments
  // How such models write their calls, for grammars: `begin` and `open` before the first call,
  // `between` between two, `close` after the last.
  std::string_view open;
  std::string_view between;
  std::string_view close;
  // An answer that is only the call's JSON object, without `begin`, is a call too.
  bool may_be_bare = false;
  // The chat templates of such models refuse ids of calls other than nine letters and digits.
  bool short_ids = false;
};
// In the order of detection.
std::span<const ToolFormat> ToolFormats();

struct ReasoningFormat {
  std::string_view name;
  std::string_view begin;  // at the start of the answer
  std::string_view end;
};
std::span<const ReasoningFormat> ReasoningFormats();

// What an operator says of the formats: "auto", "none" or the name of one.
struct AnswerFormatNames {
  std::string tools = "auto";
  std::string reasoning = "auto";
};

// Null: none.
struct AnswerFormat {
  const ToolFormat* tools = nullptr;
  const ReasoningFormat* reasoning = nullptr;
  ReasoningStart start = ReasoningStart::kUnopened;  // of an answer, once its prompt is known
};

// `tools` and `reasoning` as AnswerFormatNames; `source`: the text of the chat template that
// renders the request.
AnswerFormat FindAnswerFormat(std::string_view tools, std::string_view reasoning,
                              std::string_view source);

}  // namespace tandem::serve::openai
