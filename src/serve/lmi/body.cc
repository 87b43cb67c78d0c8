#include "serve/lmi/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "serve/http/wire.h"

namespace tandem::serve::lmi {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr size_t kMaxParts = 128;  // of a form

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(kSpace), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

Json ObjectOf(std::string name, Json value) {
  Json::Object object;
  object.push_back({std::move(name), std::move(value)});
  return Json(std::move(object));
}

Result<Json> DecodeJson(std::string_view body) {
  TANDEM_ASSIGN_OR_RETURN(Json value, ParseJson(body));
  if (value.AsObject() != nullptr) return value;
  return InvalidArgument(fmt::format("the body must be a JSON object, not {}", value.KindName()));
}

// Rows of fields; a field in quotes may hold commas, line ends and doubled quotes.
std::vector<std::vector<std::string>> ReadCsv(std::string_view text) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool is_quoted = false;
  const auto end_row = [&] {
    row.push_back(std::exchange(field, {}));
    if (row.size() > 1 || !row.front().empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_quoted) {
      const bool is_doubled = c == '"' && text.substr(i + 1).starts_with('"');
      if (c != '"' || is_doubled) field += c;
      if (is_doubled) ++i;
      if (c == '"' && !is_doubled) is_quoted = false;
    } else if (c == '"' && field.empty()) {
      is_quoted = true;
    } else if (c == ',') {
      row.push_back(std::exchange(field, {}));
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      field += c;
    }
  }
  end_row();
  return rows;
}

Result<Json> DecodeCsv(std::string_view body) {
  const std::vector<std::vector<std::string>> rows = ReadCsv(body);
  constexpr std::string_view kNeeds = "text/csv needs a header row with a column inputs";
  if (rows.empty()) return FieldError("inputs", kNeeds);
  const auto column = std::ranges::find_if(
      rows.front(), [](const std::string& name) { return Trimmed(name) == "inputs"; });
  if (column == rows.front().end()) return FieldError("inputs", kNeeds);
  const auto index = static_cast<size_t>(column - rows.front().begin());
  Json::Array inputs;
  for (size_t i = 1; i < rows.size(); ++i) {
    if (index >= rows[i].size()) {
      return FieldError("inputs", fmt::format("row {} of the text/csv has no such column", i));
    }
    inputs.emplace_back(rows[i][index]);
  }
  return ObjectOf("inputs", Json(std::move(inputs)));
}

// A part of a form.
struct Part {
  std::string name;
  std::string content_type;  // may be empty
  std::string text;
};

// The value of a parameter of a header: `name="value"` or name=value.
std::string ParameterOf(std::string_view header, std::string_view name) {
  for (size_t at = header.find(';'); at < header.size(); at = header.find(';', at + 1)) {
    const std::string_view rest = Trimmed(header.substr(at + 1));
    if (!LowerCase(rest).starts_with(std::string(name) + "=")) continue;
    const std::string_view value = rest.substr(name.size() + 1);
    if (value.starts_with('"')) return std::string(value.substr(1, value.find('"', 1) - 1));
    return std::string(Trimmed(value.substr(0, value.find(';'))));
  }
  return {};
}

Part ReadPart(std::string_view text) {
  Part part;
  size_t end = text.find("\r\n\r\n");
  std::string_view head = text.substr(0, end);
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find("\r\n"));
    head.remove_prefix(std::min(line.size() + 2, head.size()));
    const std::string lower = LowerCase(line);
    if (lower.starts_with("content-disposition:")) part.name = ParameterOf(line, "name");
    if (lower.starts_with("content-type:")) part.content_type = Trimmed(line.substr(13));
  }
  if (end != text.npos) part.text = text.substr(end + 4);
  return part;
}

Result<std::vector<Part>> ReadMultipart(std::string_view content_type, std::string_view body) {
  const std::string boundary = ParameterOf(content_type, "boundary");
  if (boundary.empty()) return InvalidArgument("Content-Type: multipart needs a boundary");
  const std::string mark = "--" + boundary;
  std::vector<Part> parts;
  size_t begin = body.find(mark);
  while (begin != body.npos) {
    begin += mark.size();
    if (body.substr(begin).starts_with("--")) return parts;
    if (parts.size() == kMaxParts) {
      return InvalidArgument(fmt::format("a form has at most {} parts", kMaxParts));
    }
    begin += body.substr(begin).starts_with("\r\n") ? 2 : 0;
    const size_t end = body.find("\r\n" + mark, begin);
    if (end == body.npos) break;
    parts.push_back(ReadPart(body.substr(begin, end - begin)));
    begin = end + 2;
  }
  return InvalidArgument("the multipart body has no end");
}

// The fields of a form: one of them may be the whole body.
Result<Json> DecodeParts(std::vector<Part> parts) {
  for (const std::string_view name : {"data", "json", "body"}) {
    const auto found = std::ranges::find(parts, name, &Part::name);
    if (found == parts.end()) continue;
    if (!found->content_type.empty() && !found->content_type.starts_with("multipart/")) {
      return DecodeBody(found->content_type, found->text);
    }
    if (Trimmed(found->text).starts_with('{')) return DecodeJson(found->text);
    return ObjectOf("inputs", Json(std::move(found->text)));
  }
  Json::Object members;
  for (Part& part : parts) {
    if (part.name == "inputs") {
      members.push_back({part.name, Json(std::move(part.text))});
    } else if (part.name == "parameters" || part.name == "stream") {
      Result<Json> value = ParseJson(part.text);
      if (!value.ok()) return value.status().Annotate(part.name);
      members.push_back({part.name, *std::move(value)});
    }
  }
  if (members.empty()) {
    return FieldError("inputs", "is required: the form has no field of this name, and none data");
  }
  return Json(std::move(members));
}

Result<Json> DecodeForm(std::string_view body) {
  // What curl sends of JSON when nobody names its type.
  if (Trimmed(body).starts_with('{')) return DecodeJson(body);
  std::vector<Part> parts;
  for (auto& [name, value] : ParseQuery(body)) parts.push_back({name, {}, std::move(value)});
  return DecodeParts(std::move(parts));
}

}  // namespace

Result<Json> DecodeBody(std::string_view content_type, std::string_view body) {
  const std::string type = LowerCase(Trimmed(content_type.substr(0, content_type.find(';'))));
  if (type.empty() || type.starts_with("application/json") || type == "application/octet-stream") {
    return DecodeJson(body);
  }
  if (type == "text/csv") return DecodeCsv(body);
  if (type == "text/plain") {
    Json::Array inputs;
    inputs.emplace_back(std::string(body));
    return ObjectOf("inputs", Json(std::move(inputs)));
  }
  if (type == "application/x-www-form-urlencoded") return DecodeForm(body);
  if (type == "multipart/form-data") {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Part> parts, ReadMultipart(content_type, body));
    return DecodeParts(std::move(parts));
  }
  return InvalidArgument(
             fmt::format("Content-Type: {} is not supported by this server; send application/json, "
                         "text/csv, text/plain or multipart/form-data",
                         Printable(type)))
      .WithField("Content-Type");
}

}  // namespace tandem::serve::lmi
