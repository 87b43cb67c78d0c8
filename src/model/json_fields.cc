#include "model/json_fields.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem {

using Json = nlohmann::json;

struct JsonFields::State {
  Json document;
  Status status;
};

namespace {

// The value under `key`, or null when there is none.
const Json* Find(const void* node, std::string_view key) {
  const auto& object = *static_cast<const Json*>(node);
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

// A value for a message: kept short, whatever it is.
std::string ShortText(const Json& value) {
  constexpr size_t kMaxShown = 60;
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
  return text;
}

// Whole numbers, including those written as 4096.0.
std::optional<int64_t> AsInt(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > INT64_MAX) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  if (number != std::floor(number) || std::abs(number) > 9e15) return std::nullopt;
  return static_cast<int64_t>(number);
}

}  // namespace

Result<JsonFields> JsonFields::Parse(std::string_view text) {
  auto state = std::make_shared<State>();
  state->document = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (state->document.is_discarded()) return InvalidArgument("not valid JSON");
  if (!state->document.is_object()) {
    return InvalidArgument("must be a JSON object, found " + ShortText(state->document));
  }
  const void* root = &state->document;
  return JsonFields(std::move(state), root, "");
}

bool JsonFields::Has(std::string_view key) const { return Find(node_, key) != nullptr; }

std::vector<std::string> JsonFields::Keys() const {
  std::vector<std::string> keys;
  for (const auto& item : static_cast<const Json*>(node_)->items()) keys.push_back(item.key());
  return keys;
}

void JsonFields::Fail(std::string_view key, std::string_view what) const {
  if (!state_->status.ok()) return;
  state_->status = InvalidArgument(path_ + std::string(key) + ": " + std::string(what));
}

const Status& JsonFields::status() const { return state_->status; }

int64_t JsonFields::Int(std::string_view key) const {
  if (!Has(key)) Fail(key, "is missing");
  return Int(key, 0);
}

int64_t JsonFields::Int(std::string_view key, int64_t fallback) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return fallback;
  if (const auto number = AsInt(*value)) return *number;
  Fail(key, "must be a whole number, found " + ShortText(*value));
  return fallback;
}

double JsonFields::Number(std::string_view key) const {
  if (!Has(key)) Fail(key, "is missing");
  return Number(key, 0.0);
}

double JsonFields::Number(std::string_view key, double fallback) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return fallback;
  if (value->is_number()) return value->get<double>();
  Fail(key, "must be a number, found " + ShortText(*value));
  return fallback;
}

bool JsonFields::Bool(std::string_view key, bool fallback) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, "must be true or false, found " + ShortText(*value));
  return fallback;
}

std::string JsonFields::Text(std::string_view key) const {
  if (!Has(key)) Fail(key, "is missing");
  return Text(key, "");
}

std::string JsonFields::Text(std::string_view key, std::string_view fallback) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  Fail(key, "must be a string, found " + ShortText(*value));
  return std::string(fallback);
}

std::vector<int64_t> JsonFields::Ints(std::string_view key) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {Int(key, 0)};
  std::vector<int64_t> numbers;
  for (const Json& item : *value) {
    const auto number = AsInt(item);
    if (!number) {
      Fail(key, "must hold whole numbers, found " + ShortText(item));
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

std::vector<double> JsonFields::Numbers(std::string_view key) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return {};
  std::vector<double> numbers;
  const bool is_list = value->is_array() && std::ranges::all_of(*value, &Json::is_number);
  if (!is_list) {
    Fail(key, "must be a list of numbers, found " + ShortText(*value));
    return {};
  }
  for (const Json& item : *value) numbers.push_back(item.get<double>());
  return numbers;
}

std::vector<std::string> JsonFields::Texts(std::string_view key) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return {};
  std::vector<std::string> texts;
  if (!value->is_array()) {
    Fail(key, "must be a list of strings, found " + ShortText(*value));
    return {};
  }
  for (const Json& item : *value) {
    if (!item.is_string()) {
      Fail(key, "must hold strings, found " + ShortText(item));
      return {};
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::optional<JsonFields> JsonFields::Object(std::string_view key) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return std::nullopt;
  if (value->is_object()) return JsonFields(state_, value, path_ + std::string(key) + ".");
  Fail(key, "must be an object, found " + ShortText(*value));
  return std::nullopt;
}

std::vector<JsonFields> JsonFields::Objects(std::string_view key) const {
  const Json* value = Find(node_, key);
  if (value == nullptr) return {};
  if (!value->is_array()) {
    Fail(key, "must be a list of objects, found " + ShortText(*value));
    return {};
  }
  std::vector<JsonFields> objects;
  for (const Json& item : *value) {
    const std::string name = std::string(key) + "[" + std::to_string(objects.size()) + "]";
    if (!item.is_object()) {
      Fail(name, "must be an object, found " + ShortText(item));
      break;
    }
    objects.push_back(JsonFields(state_, &item, path_ + name + "."));
  }
  return objects;
}

std::string JsonFields::Shown(std::string_view key) const {
  const Json* value = Find(node_, key);
  return value == nullptr ? "null" : ShortText(*value);
}

}  // namespace tandem
