#include "serve/openai/completions/answer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/json_blanks.h"
#include "serve/openai/answers/reasoning_grammar.h"
#include "serve/openai/answers/tool_grammar.h"

namespace tandem::serve::openai {
namespace {

// Of calls that follow a grammar, where the chat template shows none.
constexpr std::string_view kDefaultToolFormat = "hermes";

std::string_view FieldOf(const ToolRequest& tools) {
  return tools.must_call() || tools.is_part ? "tool_choice" : "tools";
}

// A demanded call leaves no room for an answer in JSON: some clients describe both, and mean the
// call.
Status PreferDemandedCall(Call& call) {
  const std::shared_ptr<const OutputGrammar> answer = call.prompts.front().grammar;
  if (answer == nullptr || !call.tools.must_call()) return {};
  if (!IsJsonGrammar(*answer)) {
    return FieldError(
        "tool_choice",
        fmt::format("cannot demand a call beside {}: the answer would have to be both",
                    answer->field));
  }
  for (TextRequest& prompt : call.prompts) prompt.grammar = nullptr;
  return {};
}

// Gives the prompts the grammar of calls, and of the answer that the client may have asked for.
Status ConstrainCalls(const AnswerFormat& format, const TextCodec& codec, Call& call) {
  const std::shared_ptr<const OutputGrammar> answer = call.prompts.front().grammar;
  if (answer != nullptr && !IsJsonGrammar(*answer)) {
    return FieldError(
        FieldOf(call.tools),
        fmt::format("strict functions and allowed_tools can stand beside JSON, but not beside {}",
                    answer->field));
  }
  for (TextRequest& prompt : call.prompts) {
    prompt.grammar_after = [format, tools = call.tools, answer, &codec](ReasoningStart start) {
      AnswerFormat known = format;
      known.start = start;
      return ToolGrammar(tools, known, answer.get(), codec);
    };
  }
  return {};
}

// The client's own grammar describes what follows the reasoning.
void PutReasoningFirst(const ReasoningFormat& format, const TextCodec& codec, TextRequest& prompt) {
  if (prompt.grammar == nullptr) return;
  prompt.grammar_after = [&format, grammar = prompt.grammar, &codec](ReasoningStart start) {
    return start == ReasoningStart::kOpen ? AfterReasoning(*grammar, format, codec) : grammar;
  };
}

}  // namespace

AnswerParser AnswerPlan::NewParser(ReasoningStart start) const {
  AnswerFormat known = format;
  known.start = start;
  return {known, tools};
}

Result<AnswerPlan> PlanAnswer(const AnswerFormatNames& names, const TextCodec& codec,
                              std::shared_ptr<CallIds> call_ids, Call& call) {
  AnswerPlan plan;
  plan.call_ids = std::move(call_ids);
  if (call.endpoint != Endpoint::kChat) return plan;
  const bool has_tools = !call.tools.for_template.is_null();
  plan.format = FindAnswerFormat(names.tools, names.reasoning, codec.ChatSource(has_tools));
  plan.tools = call.tools.callable();
  const bool follows_grammar = call.tools.follows_grammar();
  if (plan.tools.names.empty()) plan.format.tools = nullptr;
  TANDEM_RETURN_IF_ERROR(PreferDemandedCall(call));
  if (follows_grammar && plan.format.tools == nullptr) {
    if (names.tools == "none") {
      return FieldError(
          FieldOf(call.tools),
          "needs a format of tool calls; this server was started with --tool_format none");
    }
    plan.format.tools = FindAnswerFormat(kDefaultToolFormat, "none", "").tools;
  }
  std::vector<std::string_view> marks;
  if (const ToolFormat* tools = plan.format.tools) {
    marks.insert(marks.end(), {tools->begin, tools->end});
  }
  if (const ReasoningFormat* reasoning = plan.format.reasoning) {
    marks.insert(marks.end(), {reasoning->begin, reasoning->end});
  }
  const bool any_special = std::ranges::any_of(
      marks, [&](std::string_view mark) { return codec.SpecialToken(mark).has_value(); });
  for (TextRequest& prompt : call.prompts) {
    if (any_special) prompt.skip_special_tokens = false;
    if (const ReasoningFormat* reasoning = plan.format.reasoning) {
      prompt.reasoning = ReasoningMarks{reasoning->begin, reasoning->end};
      PutReasoningFirst(*reasoning, codec, prompt);
    }
  }
  if (follows_grammar) {
    plan.tools.need_mark = call.prompts.front().grammar != nullptr;
    TANDEM_RETURN_IF_ERROR(ConstrainCalls(plan.format, codec, call));
  }
  return plan;
}

}  // namespace tandem::serve::openai
