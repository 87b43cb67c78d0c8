#include "serve/openai/answers/call_reader.h"

#include "serve/json.h"

namespace tandem::serve::openai {

void CallReader::Push(std::string_view text, int32_t& num_calls, std::vector<AnswerPart>& out) {
  size_t first = 0;  // of the arguments in this text
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool was_argument = depth_ >= 2;
    if (depth_ == 1) head_ += c;
    if (in_string_) {
      if (!is_escaped_ && c == '"') in_string_ = false;
      is_escaped_ = !is_escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = depth_ > 0;
    } else if (c == '{' || (c == '[' && depth_ > 0)) {
      if (++depth_ == 1) head_.assign(1, c);
      if (depth_ == 2) {
        Begin(num_calls++, out);
        first = i;
      }
    } else if ((c == '}' || c == ']') && depth_ > 0) {
      --depth_;
    }
    const bool is_argument = depth_ >= 2;
    const bool ends = was_argument && !is_argument;
    if (ends || (is_argument && i + 1 == text.size())) {
      out.push_back(
          {PartKind::kArguments, std::string(text.substr(first, i + 1 - first)), num_calls - 1});
    }
  }
}

void CallReader::Begin(int32_t index, std::vector<AnswerPart>& out) {
  head_.back() = '0';  // in place of the arguments
  const Result<Json> call = ParseJson(head_ + "}");
  const Json* name = call.ok() ? call->Find("name") : nullptr;
  out.push_back({PartKind::kCall,
                 name != nullptr && name->AsString() != nullptr ? *name->AsString() : "", index});
}

}  // namespace tandem::serve::openai
