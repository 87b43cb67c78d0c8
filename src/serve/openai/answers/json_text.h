// Places in JSON's text, for readers that keep it as it was written. Pure but for JsonEnd's own
// state.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace tandem::serve::openai {

// Looks for the end of an object or array in text that grows: each byte is looked at once. Brackets
// of any kind count alike. One thread.
class JsonEnd {
 public:
  // `text` is what it was at the last call, and more; the value begins at `from`, the same at each
  // call. One after its end, or npos: it has not ended.
  size_t Find(std::string_view text, size_t from);

 private:
  size_t at_ = 0;  // after `from`
  int depth_ = 0;
  bool in_string_ = false;
  bool is_escaped_ = false;
};

// The values' texts, without the white space around them, of an array's valid JSON text.
std::vector<std::string_view> JsonItems(std::string_view array);

// The text of a member's value in an object's valid JSON text; empty: there is none. `name` is one
// that JSON writes without escapes.
std::string_view JsonMemberText(std::string_view object, std::string_view name);

}  // namespace tandem::serve::openai
