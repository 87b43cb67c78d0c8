// The parts of a chat answer, and what its reader must know of the request's tools. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::serve::openai {

enum class PartKind : uint8_t { kContent, kReasoning, kCall, kArguments };

// A further piece of one part. A call begins with kCall, and its kArguments follow.
struct AnswerPart {
  PartKind kind = PartKind::kContent;
  std::string text;     // of kCall: the function's name
  int32_t call = -1;    // its index in the answer
  std::string id = {};  // of kCall, once the answer's writer has given it one
};

// The tools of a request, for parsers.
struct CallableTools {
  std::vector<std::string> names;  // empty: the answer has no calls
  bool parallel = true;            // else calls after the first are dropped
  bool follow_grammar = false;     // calls are well formed as far as they go: a part comes at once
  bool is_named = false;           // the client named the one to call
  bool need_mark = false;          // an object that begins an answer is no call
};

}  // namespace tandem::serve::openai
