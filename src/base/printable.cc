#include "base/printable.h"

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>

#include "base/utf8.h"

namespace tandem {

std::string Printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto lead = static_cast<uint8_t>(text.front());
    const size_t length = Utf8SequenceLength(text);
    const bool latin_control = length == 2 && lead == 0xc2 && static_cast<uint8_t>(text[1]) < 0xa0;
    if (length == 0) {
      out += fmt::format("\\x{:02x}", lead);
    } else if (lead == '\n') {
      out += "\\n";
    } else if (lead < 0x20 || lead == 0x7f) {
      out += fmt::format("\\u{:04x}", lead);
    } else if (latin_control) {
      out += fmt::format("\\u{:04x}", static_cast<uint8_t>(text[1]));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace tandem
