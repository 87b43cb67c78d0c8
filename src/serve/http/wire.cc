#include "serve/http/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <random>

namespace tandem::serve {
namespace {

constexpr size_t kMaxRequestId = 128;

bool IsAlphanumeric(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

TargetParts ParseTarget(std::string_view target) {
  TargetParts parts;
  if (!target.starts_with('/')) {
    const size_t scheme = std::min(target.find("://"), target.size());
    const std::string name = LowerCase(target.substr(0, scheme));
    if (name != "http" && name != "https") return parts;
    target.remove_prefix(std::min(scheme + 3, target.size()));
    const size_t end = std::min(target.find_first_of("/?#"), target.size());
    parts.authority = target.substr(0, end);
    target.remove_prefix(end);
    if (!target.starts_with('/')) target = "/";
  }
  target = target.substr(0, target.find('#'));
  const size_t mark = std::min(target.find('?'), target.size());
  parts.path = target.substr(0, mark);
  parts.query = target.substr(std::min(mark + 1, target.size()));
  return parts;
}

std::optional<std::string> HostOfAuthority(std::string_view authority) {
  constexpr std::string_view kNameMarks = "-._~%!$&'()*+,;=";
  const bool is_address = authority.starts_with('[');
  const size_t end = authority.find(is_address ? ']' : ':');
  if (is_address && end == std::string_view::npos) return std::nullopt;
  const std::string_view host = authority.substr(is_address ? 1 : 0, is_address ? end - 1 : end);
  std::string_view port =
      end == std::string_view::npos ? "" : authority.substr(is_address ? end + 1 : end);
  if (!port.empty() && port.front() != ':') return std::nullopt;
  if (!port.empty()) port.remove_prefix(1);
  const bool is_good =
      std::all_of(host.begin(), host.end(),
                  [&](char c) {
                    return IsAlphanumeric(c) ||
                           (is_address ? c == ':' || c == '.'
                                       : kNameMarks.find(c) != std::string_view::npos);
                  }) &&
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_good) return std::nullopt;
  return LowerCase(host);
}

std::string HostOfOrigin(std::string_view origin) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme)) {
      return HostOfAuthority(origin.substr(scheme.size())).value_or("");
    }
  }
  return {};
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> ParseQuery(std::string_view query) {
  const auto decode = [](std::string_view text) {
    std::string spaced(text);
    std::ranges::replace(spaced, '+', ' ');
    return PercentDecode(spaced);
  };
  std::vector<std::pair<std::string, std::string>> parameters;
  while (!query.empty()) {
    const std::string_view part = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(part.size() + 1, query.size()));
    if (part.empty()) continue;
    const size_t equals = std::min(part.find('='), part.size());
    parameters.emplace_back(decode(part.substr(0, equals)),
                            decode(part.substr(std::min(equals + 1, part.size()))));
  }
  return parameters;
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
