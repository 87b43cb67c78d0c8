// Text of HTTP/1.1 that needs no parser: targets, ids, and the head of a response. Pure functions
// but for NewRequestId; safe on any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/message.h"

namespace tandem::serve {

std::string LowerCase(std::string_view text);

// A request's target, taken apart. Views into it.
struct TargetParts {
  std::string_view authority;  // "host:port" of an absolute target; else empty
  std::string_view path;       // without the query; empty when the target is no path
};
TargetParts ParseTarget(std::string_view target);

// The host of "host", "host:port" or "[address]:port", in lower case and without brackets; nothing
// when it is none of these.
std::optional<std::string> HostOfAuthority(std::string_view authority);

// With each %XX as the byte that it stands for; a % without two digits stays.
std::string PercentDecode(std::string_view text);

// Visible ASCII, and not long.
bool IsGoodRequestId(std::string_view id);
std::string NewRequestId();  // random

// How a response's body is delimited, and what follows it.
struct Framing {
  std::optional<size_t> length;  // else chunked, or to the end of the connection in HTTP/1.0
  bool is_http_1_0 = false;
  bool keep_alive = true;
};

// Status line and header fields, the empty line included.
void AppendHead(const HttpHead& head, const Framing& framing, std::string_view request_id,
                std::string& out);

}  // namespace tandem::serve
