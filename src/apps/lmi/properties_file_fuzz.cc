// Fuzz target: any bytes as a .properties file. What was read, written with every character that
// could matter escaped, is read as the same again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "apps/lmi/properties_file.h"
#include "base/check.h"
#include "base/utf8.h"

namespace tandem::apps {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\=:#! ").find(c) != std::string_view::npos) {
      out += {'\\', c};
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\f') {
      out += "\\f";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

void ReadTwice(std::string_view bytes) {
  const auto first = ParseProperties(bytes);
  if (!first.ok()) {
    TANDEM_CHECK(first.status().message().starts_with("line "), "an error without its line");
    return;
  }
  std::string written = "\n";  // a byte order mark counts only at the very start
  for (const Property& property : *first) {
    TANDEM_CHECK(IsUtf8(property.key) && IsUtf8(property.value), "not UTF-8");
    TANDEM_CHECK(property.line > 0, "no line");
    written += Escaped(property.key) + "=" + Escaped(property.value) + "\n";
  }
  const auto second = ParseProperties(written);
  TANDEM_CHECK(second.ok() && second->size() == first->size(), "a property was lost");
  for (size_t i = 0; i < first->size(); ++i) {
    TANDEM_CHECK((*first)[i].key == (*second)[i].key, "another key");
    TANDEM_CHECK((*first)[i].value == (*second)[i].value, "another value");
  }
}

}  // namespace
}  // namespace tandem::apps

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::apps::ReadTwice({reinterpret_cast<const char*>(data), size});
  return 0;
}
