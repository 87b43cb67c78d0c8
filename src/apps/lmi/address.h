// Where a server of LMI's containers listens: `inference_address`. A pure function; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::apps {

inline constexpr std::string_view kLmiAddress = "http://0.0.0.0:8080";  // of the image

struct LmiAddress {
  std::string host;
  std::string port;
  bool https = false;
};

// "http://0.0.0.0:8080"; without a port 8080, or 8443 of https. An IPv6 address is in brackets.
// INVALID_ARGUMENT names inference_address.
Result<LmiAddress> ParseLmiAddress(std::string_view text);

}  // namespace tandem::apps
