// HTTP/1.1 text that needs no parser: targets, ids, and the head of a response. Pure functions
// except NewRequestId; safe on any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "serve/http/message.h"

namespace tandem::serve {

std::string LowerCase(std::string_view text);

// The parts of a request's target. Views into it.
struct TargetParts {
  std::string_view authority;  // "host:port" of an absolute target; else empty
  std::string_view path;       // without the query; empty when the target is no path
  std::string_view query;      // between the "?" and a "#"
};
TargetParts ParseTarget(std::string_view target);

// The host of "host", "host:port" or "[address]:port", in lower case and without brackets; empty
// for any other form.
std::optional<std::string> HostOfAuthority(std::string_view authority);

// The host of an Origin header, "https://host:port", as above; empty for one without a host, such
// as "null", and for any other form.
std::string HostOfOrigin(std::string_view origin);

// Replaces each %XX by its byte; a % without two hex digits stays.
std::string PercentDecode(std::string_view text);

// The names and values of a query or of a form, "a=1&b=x+y", decoded; a + is a space. A name
// without a = has an empty value.
std::vector<std::pair<std::string, std::string>> ParseQuery(std::string_view query);

// Visible ASCII of limited length.
bool IsGoodRequestId(std::string_view id);
std::string NewRequestId();  // random

// How a response's body is delimited, and whether the connection stays open.
struct Framing {
  std::optional<size_t> length;  // else chunked, or up to the end of the connection in HTTP/1.0
  bool is_http_1_0 = false;
  bool keep_alive = true;
};

// Status line and header fields, the empty line included.
void AppendHead(const HttpHead& head, const Framing& framing, std::string_view request_id,
                std::string& out);

}  // namespace tandem::serve
