#include "serve/openai/request/prompts.h"

#include <fmt/format.h>

#include <limits>

namespace tandem::serve::openai {
namespace {

constexpr std::string_view kOnlyPrompts =
    "an array must hold strings, token ids, or arrays of token ids";

}  // namespace

bool ReadTokenIds(const Json::Array& list, std::vector<int32_t>& tokens) {
  tokens.reserve(list.size());
  for (const Json& item : list) {
    const int64_t* id = item.AsInt();
    if (id == nullptr || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
      return false;
    }
    tokens.push_back(static_cast<int32_t>(*id));
  }
  return true;
}

Status ReadPrompts(const Json* prompt, const TextRequest& options,
                   std::vector<TextRequest>& prompts) {
  if (prompt == nullptr) return FieldError("prompt", "is required");
  if (prompt->AsString() != nullptr) {
    prompts.push_back(options);
    prompts.back().text = *prompt->AsString();
    return {};
  }
  const Json::Array* list = prompt->AsArray();
  if (list == nullptr) {
    return FieldError("prompt",
                      fmt::format("must be a string or an array, not {}", prompt->KindName()));
  }
  if (list->empty()) return FieldError("prompt", "must not be empty");
  if (list->front().is_number()) {
    prompts.push_back(options);
    const bool are_ids = ReadTokenIds(*list, prompts.back().tokens.emplace());
    return are_ids ? Status() : FieldError("prompt", kOnlyPrompts);
  }
  if (list->size() > kMaxPrompts) {
    return FieldError("prompt", fmt::format("at most {} prompts are allowed", kMaxPrompts));
  }
  for (const Json& item : *list) {
    prompts.push_back(options);
    if (item.AsString() != nullptr) {
      prompts.back().text = *item.AsString();
      continue;
    }
    if (item.AsArray() == nullptr ||
        !ReadTokenIds(*item.AsArray(), prompts.back().tokens.emplace())) {
      return FieldError("prompt", kOnlyPrompts);
    }
  }
  return {};
}

}  // namespace tandem::serve::openai
