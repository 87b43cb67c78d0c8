// AnswerParser: a chat answer's text, in pieces of any size, → its parts: content, reasoning and
// tool calls. What is no whole call is content. Whatever the pieces, the parts joined are the same.
// Owned by one answer's reader; one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/json.h"
#include "serve/openai/answer_format.h"

namespace tandem::serve::openai {

enum class PartKind : uint8_t { kContent, kReasoning, kCall, kArguments };

// A further piece of one part. A call begins with kCall, and kArguments follow.
struct AnswerPart {
  PartKind kind = PartKind::kContent;
  std::string text;   // of kCall: the function's name
  int32_t call = -1;  // its index in the answer
};

// The tools of a request, for parsers.
struct CallableTools {
  std::vector<std::string> names;  // empty: the answer has no calls
  bool parallel = true;            // else calls after the first are dropped
};

class AnswerParser {
 public:
  // `format` without tools or reasoning finds none; `tools` as the request had them.
  AnswerParser(const AnswerFormat& format, CallableTools tools);

  std::vector<AnswerPart> Push(std::string_view text);
  // The end of the answer: what was held back.
  std::vector<AnswerPart> Flush();

  int32_t num_calls() const { return num_calls_; }

 private:
  enum class State : uint8_t { kStart, kReasoning, kAfterReasoning, kContent, kCall };

  bool Step(bool is_end, std::vector<AnswerPart>& out);
  bool StepStart(bool is_end);
  bool StepReasoning(bool is_end, std::vector<AnswerPart>& out);
  bool StepContent(bool is_end, std::vector<AnswerPart>& out);
  bool StepCall(bool is_end, std::vector<AnswerPart>& out);
  bool AddCalls(const Json& value, std::vector<AnswerPart>& out);
  const Json* ArgumentsOf(const Json& call) const;
  void Emit(PartKind kind, size_t bytes, std::vector<AnswerPart>& out);

  const AnswerFormat format_;
  const CallableTools tools_;
  State state_ = State::kStart;
  std::string held_;      // not yet given out
  bool is_bare_ = false;  // kCall without the mark before it
  bool is_after_call_ = false;
  bool has_reasoning_ = false;
  bool may_be_bare_ = false;  // nothing of the content has been given out
  int32_t num_calls_ = 0;
};

}  // namespace tandem::serve::openai
