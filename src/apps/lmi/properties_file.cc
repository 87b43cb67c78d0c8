#include "apps/lmi/properties_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace tandem::apps {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr uint32_t kReplacement = 0xFFFD;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\f'; }
bool IsLineEnd(char c) { return c == '\n' || c == '\r'; }

void AppendUtf8(uint32_t code, std::string& to) {
  const auto tail = [&](int shift) {
    to.push_back(static_cast<char>(0x80u | ((code >> shift) & 0x3Fu)));
  };
  if (code < 0x80) {
    to.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    to.push_back(static_cast<char>(0xC0u | (code >> 6)));
    tail(0);
  } else if (code < 0x10000) {
    to.push_back(static_cast<char>(0xE0u | (code >> 12)));
    tail(6);
    tail(0);
  } else {
    to.push_back(static_cast<char>(0xF0u | (code >> 18)));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string FromLatin1(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(static_cast<unsigned char>(byte), text);
  return text;
}

// A line with those that continue it: without line ends, the backslashes before them and the blanks
// at the start of each.
struct LogicalLine {
  std::string text;
  int number = 0;
};

// Cuts text into logical lines, without blank lines and comments.
class LineReader {
 public:
  explicit LineReader(std::string_view text) : text_(text) {}

  std::optional<LogicalLine> Next() {
    LogicalLine line;
    while (at_ < text_.size()) {
      SkipBlanks();
      // Java looks for comments wherever nothing has been collected yet, so also after a line with
      // a backslash alone.
      if (line.text.empty() && at_ < text_.size() && (text_[at_] == '#' || text_[at_] == '!')) {
        while (at_ < text_.size() && !IsLineEnd(text_[at_])) ++at_;
        SkipLineEnd();
        continue;
      }
      if (line.text.empty()) line.number = number_;
      const bool is_continued = TakeToLineEnd(line.text);
      if (!is_continued && !line.text.empty()) return line;
    }
    if (line.text.empty()) return std::nullopt;
    return line;
  }

 private:
  void SkipBlanks() {
    while (at_ < text_.size() && IsBlank(text_[at_])) ++at_;
  }
  void SkipLineEnd() {
    if (at_ >= text_.size()) return;
    if (text_[at_] == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n') ++at_;
    ++at_;
    ++number_;
  }
  // Whether the line ends in a backslash that continues it.
  bool TakeToLineEnd(std::string& to) {
    bool is_escaped = false;
    while (at_ < text_.size() && !IsLineEnd(text_[at_])) {
      is_escaped = text_[at_] == '\\' && !is_escaped;
      to.push_back(text_[at_++]);
    }
    SkipLineEnd();
    if (is_escaped) to.pop_back();
    return is_escaped;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int number_ = 1;  // of the line at at_
};

std::optional<uint32_t> HexUnit(std::string_view digits) {
  if (digits.size() < 4) return std::nullopt;
  uint32_t unit = 0;
  for (const char c : digits.substr(0, 4)) {
    unit <<= 4;
    if (c >= '0' && c <= '9') {
      unit += static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      unit += static_cast<uint32_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      unit += static_cast<uint32_t>(c - 'A') + 10;
    } else {
      return std::nullopt;
    }
  }
  return unit;
}

bool IsHighSurrogate(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool IsLowSurrogate(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// `text` begins after "\u" with the digits of one UTF-16 unit, and is advanced over them and, of a
// pair of surrogates, over the second escape.
Result<uint32_t> TakeEscapedCharacter(std::string_view& text) {
  const std::optional<uint32_t> unit = HexUnit(text);
  if (!unit) return InvalidArgument("\\u needs four hexadecimal digits");
  text.remove_prefix(4);
  if (!IsHighSurrogate(*unit)) return IsLowSurrogate(*unit) ? kReplacement : *unit;
  if (!text.starts_with("\\u")) return kReplacement;
  const std::optional<uint32_t> low = HexUnit(text.substr(2));
  if (!low || !IsLowSurrogate(*low)) return kReplacement;  // the escape is read by itself
  text.remove_prefix(6);
  return 0x10000 + ((*unit - 0xD800) << 10) + (*low - 0xDC00);
}

Result<std::string> Unescape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const char c = text.front();
    text.remove_prefix(1);
    if (c != '\\' || text.empty()) {
      out.push_back(c);
      continue;
    }
    const char escaped = text.front();
    text.remove_prefix(1);
    if (escaped == 'u') {
      TANDEM_ASSIGN_OR_RETURN(const uint32_t code, TakeEscapedCharacter(text));
      AppendUtf8(code, out);
      continue;
    }
    constexpr std::string_view kNames = "trnf";
    constexpr std::string_view kCharacters = "\t\r\n\f";
    const size_t known = kNames.find(escaped);
    out.push_back(known == std::string_view::npos ? escaped : kCharacters[known]);
  }
  return out;
}

// The key ends at the first blank, '=' or ':' without a backslash; the value begins after the
// blanks that follow and at most one '=' or ':' among them.
Result<Property> SplitLine(const LogicalLine& line) {
  const std::string_view text = line.text;
  size_t key_end = 0;
  bool is_escaped = false;
  while (key_end < text.size()) {
    const char c = text[key_end];
    if (!is_escaped && (c == '=' || c == ':' || IsBlank(c))) break;
    is_escaped = c == '\\' && !is_escaped;
    ++key_end;
  }
  size_t begin = key_end;
  bool has_separator = false;
  for (; begin < text.size(); ++begin) {
    if (IsBlank(text[begin])) continue;
    if (has_separator || (text[begin] != '=' && text[begin] != ':')) break;
    has_separator = true;
  }
  Property property{.key = {}, .value = {}, .line = line.number};
  TANDEM_ASSIGN_OR_RETURN(property.key, Unescape(text.substr(0, key_end)));
  TANDEM_ASSIGN_OR_RETURN(property.value, Unescape(text.substr(begin)));
  return property;
}

}  // namespace

Result<std::vector<Property>> ParseProperties(std::string_view bytes) {
  if (bytes.starts_with(kByteOrderMark)) bytes.remove_prefix(kByteOrderMark.size());
  const std::string text = IsUtf8(bytes) ? std::string(bytes) : FromLatin1(bytes);
  std::map<std::string, Property> last;
  LineReader lines(text);
  while (const std::optional<LogicalLine> line = lines.Next()) {
    Result<Property> property = SplitLine(*line);
    if (!property.ok()) return property.status().Annotate(fmt::format("line {}", line->number));
    last.insert_or_assign(property->key, *std::move(property));
  }
  std::vector<Property> properties;
  for (auto& [key, property] : last) properties.push_back(std::move(property));
  std::ranges::sort(properties, {}, &Property::line);
  return properties;
}

}  // namespace tandem::apps
