#include "serve/openai/answers/json_text.h"

#include "serve/json.h"

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

size_t SkipSpace(std::string_view text, size_t at) {
  return text.find_first_not_of(kWhiteSpace, at);
}

// The value that begins at `at`.
std::string_view ValueAt(std::string_view text, size_t at) {
  if (text[at] == '{' || text[at] == '[') return text.substr(at, JsonEnd().Find(text, at) - at);
  if (text[at] != '"') return text.substr(at, text.find_first_of(" \t\r\n,]}", at) - at);
  size_t end = at + 1;
  while (text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return text.substr(at, end + 1 - at);
}

}  // namespace

size_t JsonEnd::Find(std::string_view text, size_t from) {
  while (from + at_ < text.size()) {
    const char c = text[from + at_++];
    if (in_string_) {
      if (!is_escaped_ && c == '"') in_string_ = false;
      is_escaped_ = !is_escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if ((c == '}' || c == ']') && --depth_ == 0) {
      return from + at_;
    }
  }
  return text.npos;
}

std::vector<std::string_view> JsonItems(std::string_view array) {
  std::vector<std::string_view> items;
  for (size_t at = SkipSpace(array, 1); array[at] != ']';) {
    items.push_back(ValueAt(array, at));
    at = SkipSpace(array, at + items.back().size());
    if (array[at] == ',') at = SkipSpace(array, at + 1);
  }
  return items;
}

std::string_view JsonMemberText(std::string_view object, std::string_view name) {
  for (size_t at = SkipSpace(object, 1); object[at] != '}';) {
    const std::string_view key = ValueAt(object, at);
    const size_t colon = SkipSpace(object, at + key.size());
    const std::string_view value = ValueAt(object, SkipSpace(object, colon + 1));
    const Result<Json> read = ParseJson(key);
    if (read.ok() && *read->AsString() == name) return value;
    at = SkipSpace(object, static_cast<size_t>(value.data() - object.data()) + value.size());
    if (object[at] == ',') at = SkipSpace(object, at + 1);
  }
  return {};
}

}  // namespace tandem::serve::openai
