#include "serve/lmi/properties.h"

#include <algorithm>

#include "serve/http/wire.h"

namespace tandem::serve::lmi {

std::string PropertyOf(const HttpRequest& request, std::string_view name) {
  const std::string_view header = request.Header(name);
  if (!header.empty()) return std::string(header);
  std::string_view attributes = request.Header(kCustomAttributes);
  while (!attributes.empty()) {
    std::string_view part = attributes.substr(0, attributes.find(';'));
    attributes.remove_prefix(std::min(part.size() + 1, attributes.size()));
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
    const size_t equals = part.find('=');
    if (equals != part.npos && LowerCase(part.substr(0, equals)) == name) {
      return std::string(part.substr(equals + 1));
    }
  }
  return {};
}

}  // namespace tandem::serve::lmi
