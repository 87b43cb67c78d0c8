#include "apps/lmi/address.h"

#include <fmt/format.h>

namespace tandem::apps {

Result<LmiAddress> ParseLmiAddress(std::string_view text) {
  const Status error = InvalidArgument(
      fmt::format("inference_address: '{}' is no address of the form {}", text, kLmiAddress));
  LmiAddress address;
  address.https = text.starts_with("https://");
  if (!address.https && !text.starts_with("http://")) return error;
  text.remove_prefix(address.https ? 8 : 7);
  if (text.ends_with('/')) text.remove_suffix(1);
  const size_t colon = text.rfind(':');
  // An IPv6 address is written in brackets.
  const bool has_port =
      colon != std::string_view::npos && text.find(']', colon) == std::string_view::npos;
  address.host = text.substr(0, has_port ? colon : text.size());
  address.port = has_port ? std::string(text.substr(colon + 1)) : address.https ? "8443" : "8080";
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host.empty() || address.port.empty()) return error;
  return address;
}

}  // namespace tandem::apps
