// Cors: the web pages of other origins that may use the server from their visitors' browsers, and
// what those browsers are told. Credentials are never allowed: a page sends an API key itself.
// Immutable; safe on any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/http/message.h"

namespace tandem::serve {

class Cors {
 public:
  // `origins` as ParseOrigins returns them; none: browsers are told nothing, and refuse such pages.
  explicit Cors(std::vector<std::string> origins);

  bool is_on() const { return !origins_.empty(); }
  // Whether pages of the origin ("https://chat.example:8443") are named.
  bool Allows(std::string_view origin) const;
  // The headers of every answer to a request with this Origin (empty: it has none).
  HttpHeaders Headers(std::string_view origin) const;
  // Whether this is the question of a browser that precedes a page's request. It carries no key.
  static bool IsPreflight(const HttpRequest& request);
  // Its answer, besides Headers(): `methods` are those of the path, "GET, HEAD".
  std::unique_ptr<Reply> AnswerPreflight(const HttpRequest& request,
                                         std::string_view methods) const;

 private:
  const std::vector<std::string> origins_;
  const bool any_;
};

// Origins between commas, each "*" or a scheme and a host with an optional port, as browsers send
// them. INVALID_ARGUMENT for anything else, for example a path after the host.
Result<std::vector<std::string>> ParseOrigins(std::string_view list);

}  // namespace tandem::serve
