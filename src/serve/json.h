// JSON on the wire: a small value tree and a writer, so that front ends never see the parsing
// library. ParseJson limits depth and the number of values, and reports the position and the member
// of an error. Plain values, owned by whoever holds them, safe on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace tandem::serve {

struct JsonMember;

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<JsonMember>;  // in the order of the text; may hold a name twice

  Json();  // null
  explicit Json(bool value);
  explicit Json(int64_t value);
  explicit Json(uint64_t value);  // only above the largest int64_t
  explicit Json(double value);
  explicit Json(std::string value);
  explicit Json(Array value);
  explicit Json(Object value);

  bool is_null() const;
  bool is_number() const;
  // The content if the value is of that kind, else null. Valid while the value lives.
  const bool* AsBool() const;
  const int64_t* AsInt() const;
  const uint64_t* AsUint() const;
  const double* AsDouble() const;
  const std::string* AsString() const;
  const Array* AsArray() const;
  const Object* AsObject() const;
  // Any number as a double.
  std::optional<double> Number() const;

  // The member of that name; null if there is none or this is no object.
  const Json* Find(std::string_view name) const;
  // "a string", "an object" and so on, for messages.
  std::string_view KindName() const;
  // Compact text of the value.
  std::string Dump() const;

 private:
  std::variant<std::nullptr_t, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonMember {
  std::string name;
  Json value;
};

struct JsonLimits {
  int max_depth = 100;
  size_t max_values = 1'000'000;  // a value costs about 40 bytes, its text may cost two
  bool allow_duplicates = false;
};

// INVALID_ARGUMENT with position, cause and the member in which it occurred.
Result<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Appends JSON text to a string and adds the commas. Strings are made valid UTF-8: an invalid byte
// becomes U+FFFD. Numbers without a JSON form (NaN, infinities) become null.
class JsonWriter {
 public:
  // With `spaces` a space follows each comma and colon, as Python's writer has it.
  explicit JsonWriter(std::string& out, bool spaces = false) : out_(out), spaces_(spaces) {}

  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view name);

  JsonWriter& String(std::string_view value);
  JsonWriter& Int(int64_t value);
  JsonWriter& Uint(uint64_t value);
  JsonWriter& Float(float value);    // shortest text that reads back equal; "0.0", not "0"
  JsonWriter& Double(double value);  // the same
  JsonWriter& Bool(bool value);
  JsonWriter& Null();
  JsonWriter& Value(const Json& value);

 private:
  void Separate();
  template <typename T>
  void Floating(T value);

  std::string& out_;
  const bool spaces_;
  bool needs_comma_ = false;
};

// A JSON string literal, quotes included.
void AppendJsonString(std::string_view text, std::string& out);

}  // namespace tandem::serve
