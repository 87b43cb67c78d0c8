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

// The path of an origin-form or absolute-form target; empty when it is neither.
std::string PathOfTarget(std::string_view target);

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
