// AnswerParser: a chat answer's text, in pieces of any size, → its parts: content, reasoning and
// tool calls. What is no whole call is content, unless calls follow a grammar. Whatever the pieces,
// the parts joined are the same.
// Owned by one answer's reader; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/answers/answer_format.h"
#include "serve/openai/answers/answer_part.h"
#include "serve/openai/answers/call_reader.h"
#include "serve/openai/answers/json_text.h"

namespace tandem::serve::openai {

class AnswerParser {
 public:
  // `format` without tools or reasoning finds none; `tools` as the request had them.
  AnswerParser(const AnswerFormat& format, CallableTools tools);

  std::vector<AnswerPart> Push(std::string_view text);
  // The end of the answer: what was held back.
  std::vector<AnswerPart> Flush();

  int32_t num_calls() const { return num_calls_; }
  // Whether the end of the reasoning has not come yet.
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kAfterReasoning, kContent, kCall };

  bool Step(bool is_end, std::vector<AnswerPart>& out);
  bool StepStart(bool is_end);
  bool StepReasoning(bool is_end, std::vector<AnswerPart>& out);
  bool StepContent(bool is_end, std::vector<AnswerPart>& out);
  bool StepCall(bool is_end, std::vector<AnswerPart>& out);
  bool AddCalls(std::string_view text, std::vector<AnswerPart>& out);
  std::string_view ArgumentsOf(std::string_view call) const;
  void BeginCall(bool is_bare);
  void Emit(PartKind kind, size_t bytes, std::vector<AnswerPart>& out);

  const AnswerFormat format_;
  const CallableTools tools_;
  State state_ = State::kStart;
  std::string held_;                       // not yet given out
  bool is_bare_ = false;                   // kCall without the mark before it
  JsonEnd json_end_;                       // of the call in `held_`
  size_t json_found_ = std::string::npos;  // its end
  bool is_after_call_ = false;
  bool has_reasoning_ = false;
  bool may_be_bare_ = false;  // nothing of the content has been given out
  int32_t num_calls_ = 0;
  CallReader calls_;  // of calls that follow a grammar
};

}  // namespace tandem::serve::openai
