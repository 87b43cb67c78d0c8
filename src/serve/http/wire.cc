#include "serve/http/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>

namespace tandem::serve {
namespace {

constexpr size_t kMaxRequestId = 128;

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string PathOfTarget(std::string_view target) {
  if (!target.starts_with('/')) {
    const size_t scheme = target.find("://");
    if (scheme == std::string_view::npos) return "";
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  return std::string(target.substr(0, target.find_first_of("?#")));
}

bool IsGoodRequestId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxRequestId &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string NewRequestId() {
  thread_local std::mt19937_64 random(std::random_device{}());
  return fmt::format("{:016x}", random());
}

void AppendHead(const HttpHead& head, const Framing& framing, std::string_view request_id,
                std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "HTTP/1.1 {} {}\r\n", head.status, HttpReason(head.status));
  if (!head.content_type.empty()) fmt::format_to(to, "Content-Type: {}\r\n", head.content_type);
  if (framing.length) {
    fmt::format_to(to, "Content-Length: {}\r\n", *framing.length);
  } else if (!framing.is_http_1_0) {
    out += "Transfer-Encoding: chunked\r\n";
  }
  for (const auto& [name, value] : head.headers) fmt::format_to(to, "{}: {}\r\n", name, value);
  if (!request_id.empty()) fmt::format_to(to, "X-Request-Id: {}\r\n", request_id);
  out += framing.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
}

}  // namespace tandem::serve
