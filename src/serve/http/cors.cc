#include "serve/http/cors.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

constexpr std::string_view kAny = "*";
// Besides those that every page may read. Clients read them to retry and to report.
constexpr std::string_view kReadable =
    "Retry-After, WWW-Authenticate, X-Request-Id, X-Tandem-Ignored";
constexpr std::string_view kMaxAge = "600";  // seconds that a browser keeps the answer

bool IsHeaderList(std::string_view text) {
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_, ").find(c) != std::string_view::npos;
  });
}

}  // namespace

Cors::Cors(std::vector<std::string> origins)
    : origins_(std::move(origins)), any_(std::ranges::find(origins_, kAny) != origins_.end()) {}

bool Cors::Allows(std::string_view origin) const {
  return any_ || std::ranges::find(origins_, origin) != origins_.end();
}

HttpHeaders Cors::Headers(std::string_view origin) const {
  HttpHeaders headers;
  if (!is_on()) return headers;
  // A cache must not give one origin's answer to another.
  if (!any_) headers.emplace_back("Vary", "Origin");
  if (origin.empty() || !Allows(origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", any_ ? kAny : origin);
  headers.emplace_back("Access-Control-Expose-Headers", kReadable);
  return headers;
}

bool Cors::IsPreflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && !request.Header("origin").empty() &&
         !request.Header("access-control-request-method").empty();
}

std::unique_ptr<Reply> Cors::AnswerPreflight(const HttpRequest& request,
                                             std::string_view methods) const {
  HttpHead head;
  head.content_type = "text/plain";
  if (Allows(request.Header("origin"))) {
    head.headers = {{"Access-Control-Allow-Methods", std::string(methods)},
                    {"Access-Control-Max-Age", std::string(kMaxAge)}};
    // Clients send headers of their own, so those that are asked for are allowed. "*" would not
    // allow Authorization.
    const std::string_view wanted = request.Header("access-control-request-headers");
    if (!wanted.empty() && IsHeaderList(wanted)) {
      head.headers.emplace_back("Access-Control-Allow-Headers", wanted);
    }
  }
  return MakeReply(std::move(head), "");
}

Result<std::vector<std::string>> ParseOrigins(std::string_view list) {
  std::vector<std::string> origins;
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    const std::string origin = LowerCase(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
    if (origin.empty()) continue;
    const bool is_origin = !HostOfOrigin(origin).empty() && origin.find('*') == std::string::npos;
    if (origin != kAny && !is_origin) {
      return InvalidArgument(fmt::format(
          "\"{}\" is no origin: name a scheme, a host and, unless it is the scheme's own, a port, "
          "as in https://chat.example:8443, or * for all pages",
          origin));
    }
    origins.push_back(origin);
  }
  return origins;
}

}  // namespace tandem::serve
