#include "serve/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>
#include <system_error>
#include <type_traits>

#include "base/utf8.h"
#include "serve/json_fault.h"

namespace tandem::serve {
namespace {

namespace bj = boost::json;

// Builds the tree from parser events. When a limit is exceeded, the parse ends with a sentence in
// `problem`.
class TreeBuilder {
 public:
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);

  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  std::string problem;
  // The name of the innermost member being read, which helps the reader find the error.
  std::string last_name;
  Json root;

  bool on_document_begin(bj::error_code&) { return true; }
  bool on_document_end(bj::error_code&) { return true; }
  bool on_object_begin(bj::error_code&) {
    frames_.push_back({true, {}, {}, {}});
    return true;
  }
  bool on_object_end(size_t, bj::error_code& ec) {
    Json::Object members = std::move(frames_.back().members);
    if (!limits_.allow_duplicates) {
      if (const std::string* twice = FindDuplicate(members)) {
        return Refuse(fmt::format("member \"{}\" appears twice", *twice), ec);
      }
    }
    frames_.pop_back();
    return Put(Json(std::move(members)), ec);
  }
  bool on_array_begin(bj::error_code&) {
    frames_.push_back({false, {}, {}, {}});
    return true;
  }
  bool on_array_end(size_t, bj::error_code& ec) {
    Json::Array items = std::move(frames_.back().items);
    frames_.pop_back();
    return Put(Json(std::move(items)), ec);
  }
  bool on_key_part(bj::string_view part, size_t, bj::error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_key(bj::string_view part, size_t, bj::error_code&) {
    text_.append(part.data(), part.size());
    last_name = text_.substr(0, 64);
    frames_.back().name = std::move(text_);
    text_.clear();
    return true;
  }
  bool on_string_part(bj::string_view part, size_t, bj::error_code&) {
    text_.append(part.data(), part.size());
    return true;
  }
  bool on_string(bj::string_view part, size_t, bj::error_code& ec) {
    text_.append(part.data(), part.size());
    std::string text = std::move(text_);
    text_.clear();
    return Put(Json(std::move(text)), ec);
  }
  bool on_number_part(bj::string_view, bj::error_code&) { return true; }
  bool on_int64(int64_t value, bj::string_view, bj::error_code& ec) { return Put(Json(value), ec); }
  bool on_uint64(uint64_t value, bj::string_view, bj::error_code& ec) {
    return Put(Json(value), ec);
  }
  bool on_double(double value, bj::string_view, bj::error_code& ec) {
    if (!std::isfinite(value)) return Refuse("the number is too large", ec);
    return Put(Json(value), ec);
  }
  bool on_bool(bool value, bj::error_code& ec) { return Put(Json(value), ec); }
  bool on_null(bj::error_code& ec) { return Put(Json(), ec); }
  bool on_comment_part(bj::string_view, bj::error_code&) { return true; }
  bool on_comment(bj::string_view, bj::error_code&) { return true; }

 private:
  struct Frame {
    bool is_object;
    Json::Object members;
    Json::Array items;
    std::string name;  // of the member whose value follows
  };

  bool Refuse(std::string why, bj::error_code& ec) {
    problem = std::move(why);
    ec = bj::error::syntax;
    return false;
  }

  bool Put(Json value, bj::error_code& ec) {
    if (++num_values_ > limits_.max_values) {
      return Refuse(fmt::format("more than {} values", limits_.max_values), ec);
    }
    if (frames_.empty()) {
      root = std::move(value);
    } else if (frames_.back().is_object) {
      frames_.back().members.push_back({std::move(frames_.back().name), std::move(value)});
    } else {
      frames_.back().items.push_back(std::move(value));
    }
    return true;
  }

  static const std::string* FindDuplicate(const Json::Object& members) {
    std::vector<const std::string*> names;
    names.reserve(members.size());
    for (const JsonMember& member : members) names.push_back(&member.name);
    std::sort(names.begin(), names.end(), [](auto* a, auto* b) { return *a < *b; });
    const auto twice =
        std::adjacent_find(names.begin(), names.end(), [](auto* a, auto* b) { return *a == *b; });
    return twice == names.end() ? nullptr : *twice;
  }

  const JsonLimits limits_;
  size_t num_values_ = 0;
  std::string text_;
  std::vector<Frame> frames_;
};

std::string Cause(const bj::error_code& ec, std::string_view rest, int max_depth) {
  if (ec == bj::error::too_deep) return fmt::format("nested deeper than {} levels", max_depth);
  if (ec == bj::error::incomplete) return "the text ends too early";
  if (ec == bj::error::exponent_overflow) return "the number is too large";
  for (const std::string_view word : {"NaN", "nan", "Infinity", "-Infinity", "inf"}) {
    if (rest.starts_with(word)) return "NaN and Infinity are not JSON numbers";
  }
  return ec.message();
}

}  // namespace

// Defined here and not in the class: a vector of members needs the complete type.
Json::Json() = default;
Json::Json(bool value) : value_(value) {}
Json::Json(int64_t value) : value_(value) {}
Json::Json(uint64_t value) : value_(value) {}
Json::Json(double value) : value_(value) {}
Json::Json(std::string value) : value_(std::move(value)) {}
Json::Json(Array value) : value_(std::move(value)) {}
Json::Json(Object value) : value_(std::move(value)) {}

bool Json::is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
bool Json::is_number() const {
  return AsInt() != nullptr || AsUint() != nullptr || AsDouble() != nullptr;
}
const bool* Json::AsBool() const { return std::get_if<bool>(&value_); }
const int64_t* Json::AsInt() const { return std::get_if<int64_t>(&value_); }
const uint64_t* Json::AsUint() const { return std::get_if<uint64_t>(&value_); }
const double* Json::AsDouble() const { return std::get_if<double>(&value_); }
const std::string* Json::AsString() const { return std::get_if<std::string>(&value_); }
const Json::Array* Json::AsArray() const { return std::get_if<Array>(&value_); }
const Json::Object* Json::AsObject() const { return std::get_if<Object>(&value_); }

std::optional<double> Json::Number() const {
  if (const int64_t* value = AsInt()) return static_cast<double>(*value);
  if (const uint64_t* value = AsUint()) return static_cast<double>(*value);
  if (const double* value = AsDouble()) return *value;
  return std::nullopt;
}

const Json* Json::Find(std::string_view name) const {
  const Object* members = AsObject();
  if (members == nullptr) return nullptr;
  for (const JsonMember& member : *members) {
    if (member.name == name) return &member.value;
  }
  return nullptr;
}

std::string_view Json::KindName() const {
  constexpr std::array<std::string_view, 8> kNames = {"null",       "a boolean", "an integer",
                                                      "an integer", "a number",  "a string",
                                                      "an array",   "an object"};
  return kNames[value_.index()];
}

std::string Json::Dump() const {
  std::string out;
  JsonWriter(out).Value(*this);
  return out;
}

Result<Json> ParseJson(std::string_view text, const JsonLimits& limits) {
  bj::parse_options options;
  options.max_depth = static_cast<size_t>(limits.max_depth);
  bj::basic_parser<TreeBuilder> parser(options, limits);
  bj::error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  TreeBuilder& tree = parser.handler();
  if (!ec && used < text.size()) ec = bj::error::extra_data;
  if (!ec) return std::move(tree.root);
  const std::string where =
      tree.last_name.empty() ? "" : fmt::format(", at or after member \"{}\"", tree.last_name);
  const std::string cause =
      tree.problem.empty() ? Cause(ec, text.substr(std::min(used, text.size())), limits.max_depth)
                           : tree.problem;
  return InvalidArgument(
      fmt::format("the body is not valid JSON: {} (byte {}{})", cause, used, where));
}

size_t JsonFaultLine(std::string_view text) {
  bj::basic_parser<TreeBuilder> parser(bj::parse_options{}, JsonLimits{});
  bj::error_code ec;
  const size_t used = parser.write_some(false, text.data(), text.size(), ec);
  const std::string_view before = text.substr(0, std::min(used, text.size()));
  return 1 + static_cast<size_t>(std::ranges::count(before, '\n'));
}

void JsonWriter::Separate() {
  if (needs_comma_) out_ += spaces_ ? ", " : ",";
  needs_comma_ = true;
}

JsonWriter& JsonWriter::BeginObject() {
  Separate();
  out_ += '{';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::EndObject() {
  out_ += '}';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::BeginArray() {
  Separate();
  out_ += '[';
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::EndArray() {
  out_ += ']';
  needs_comma_ = true;
  return *this;
}

JsonWriter& JsonWriter::Key(std::string_view name) {
  String(name);
  out_ += spaces_ ? ": " : ":";
  needs_comma_ = false;
  return *this;
}

JsonWriter& JsonWriter::String(std::string_view value) {
  Separate();
  AppendJsonString(value, out_);
  return *this;
}

JsonWriter& JsonWriter::Int(int64_t value) {
  Separate();
  out_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::Uint(uint64_t value) {
  Separate();
  out_ += std::to_string(value);
  return *this;
}

template <typename T>
void JsonWriter::Floating(T value) {
  if (!std::isfinite(value)) {
    Null();
    return;
  }
  Separate();
  std::array<char, 40> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  const std::string_view text(digits.data(), static_cast<size_t>(end - digits.data()));
  out_ += text;
  if (text.find_first_of(".e") == std::string_view::npos) out_ += ".0";
}

JsonWriter& JsonWriter::Float(float value) {
  Floating(value);
  return *this;
}

JsonWriter& JsonWriter::Double(double value) {
  Floating(value);
  return *this;
}

JsonWriter& JsonWriter::Bool(bool value) {
  Separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::Null() {
  Separate();
  out_ += "null";
  return *this;
}

JsonWriter& JsonWriter::Value(const Json& value) {
  if (const bool* v = value.AsBool()) return Bool(*v);
  if (const int64_t* v = value.AsInt()) return Int(*v);
  if (const uint64_t* v = value.AsUint()) return Uint(*v);
  if (const double* v = value.AsDouble()) return Double(*v);
  if (const std::string* v = value.AsString()) return String(*v);
  if (const Json::Array* items = value.AsArray()) {
    BeginArray();
    for (const Json& item : *items) Value(item);
    return EndArray();
  }
  if (const Json::Object* members = value.AsObject()) {
    BeginObject();
    for (const JsonMember& member : *members) Key(member.name).Value(member.value);
    return EndObject();
  }
  return Null();
}

void AppendJsonString(std::string_view text, std::string& out) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      const size_t length = Utf8SequenceLength(text.substr(i));
      if (length == 0) {
        out += "\xEF\xBF\xBD";  // U+FFFD
        ++i;
      } else {
        out += text.substr(i, length);
        i += length;
      }
      continue;
    }
    switch (byte) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (byte < 0x20 || byte == 0x7f) {
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
        } else {
          out += text[i];
        }
    }
    ++i;
  }
  out += '"';
}

}  // namespace tandem::serve
