#include "serve/field_reader.h"

#include <fmt/format.h>

#include <algorithm>

namespace tandem::serve {

void FieldReader::Fail(std::string_view name, std::string_view sentence) {
  if (status_.ok()) status_ = FieldError(name, sentence);
}

void FieldReader::WrongType(std::string_view name, std::string_view wanted, const Json& value) {
  Fail(name, fmt::format("must be {}, not {}", wanted, value.KindName()));
}

const Json* FieldReader::Get(std::string_view name) const {
  asked_.emplace_back(name);
  const Json* value = object_.Find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::vector<std::string> FieldReader::Unread(size_t most) const {
  std::vector<std::string> names;
  for (const JsonMember& member : *object_.AsObject()) {
    if (names.size() == most) break;
    if (member.value.is_null() || std::ranges::count(asked_, member.name) > 0) continue;
    names.push_back(member.name);
  }
  return names;
}

std::optional<double> FieldReader::Number(std::string_view name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<double> number = value->Number();
  if (!number) WrongType(name, "a number", *value);
  return number;
}

std::optional<int64_t> FieldReader::Integer(std::string_view name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->AsInt() != nullptr) return *value->AsInt();
  if (value->AsUint() != nullptr) {
    Fail(name, "is too large");
  } else {
    WrongType(name, "an integer", *value);
  }
  return std::nullopt;
}

std::optional<uint64_t> FieldReader::Bits64(std::string_view name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->AsInt() != nullptr) return static_cast<uint64_t>(*value->AsInt());
  if (value->AsUint() != nullptr) return *value->AsUint();
  WrongType(name, "an integer", *value);
  return std::nullopt;
}

std::optional<bool> FieldReader::Boolean(std::string_view name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->AsBool() != nullptr) return *value->AsBool();
  WrongType(name, "a boolean", *value);
  return std::nullopt;
}

std::optional<std::string> FieldReader::String(std::string_view name) {
  const Json* value = Get(name);
  if (value == nullptr) return std::nullopt;
  if (value->AsString() != nullptr) return *value->AsString();
  WrongType(name, "a string", *value);
  return std::nullopt;
}

std::vector<std::string> FieldReader::Strings(std::string_view name) {
  std::vector<std::string> strings;
  const Json* value = Get(name);
  if (value == nullptr) return strings;
  if (const std::string* one = value->AsString()) {
    if (!one->empty()) strings.push_back(*one);
    return strings;
  }
  const Json::Array* list = value->AsArray();
  if (list == nullptr) {
    WrongType(name, "a string or an array of strings", *value);
    return strings;
  }
  for (const Json& item : *list) {
    if (item.AsString() == nullptr) {
      Fail(name, fmt::format("must hold strings, not {}", item.KindName()));
      break;
    }
    strings.push_back(*item.AsString());
  }
  return strings;
}

}  // namespace tandem::serve
