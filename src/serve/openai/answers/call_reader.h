// CallReader: the text of calls that follow a grammar, in pieces of any size → their names, and
// their arguments as they come. Because nothing else can follow, it looks only for the calls'
// objects: {"name": NAME, ARGUMENTS: {...}}. Owned by one AnswerParser; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/openai/answers/answer_part.h"

namespace tandem::serve::openai {

class CallReader {
 public:
  // Appends the parts to `out`. Calls are counted from `num_calls` on, which it advances.
  void Push(std::string_view text, int32_t& num_calls, std::vector<AnswerPart>& out);

 private:
  void Begin(int32_t index, std::vector<AnswerPart>& out);

  std::string head_;  // of a call, up to the brace that opens its arguments
  int depth_ = 0;     // of braces and, inside a call, brackets
  bool in_string_ = false;
  bool is_escaped_ = false;
};

}  // namespace tandem::serve::openai
