// Router: path and method → front end. Also what every front end shares: the API key, refusing
// while the server drains, 404 and 405, and the count of responses. Routes are added before the
// server starts; after that any thread may call Handle.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/http/message.h"
#include "serve/metrics.h"

namespace tandem::serve {

// The values that the {…} of a route's pattern matched, in order.
using PathValues = std::vector<std::string>;
using RouteFunction = std::function<std::unique_ptr<Reply>(HttpRequest, const PathValues&,
                                                           std::function<void()> wake)>;

// How a front end writes an error.
using ErrorFormat = std::function<std::string(int status, std::string_view message)>;

struct Route {
  std::string method;
  std::string pattern;  // "/v2/models/{}/generate"; a {} matches one path segment
  RouteFunction handle;
  bool is_health = false;  // answers without a key and while draining
};

struct FrontEnd {
  std::string name;         // in metrics
  std::string path_prefix;  // "/v2"; empty for the one that answers unknown paths
  size_t body_limit = 16 << 20;
  ErrorFormat format_error;
  std::vector<Route> routes;
};

// The HTTP status of an error.
int HttpStatusOf(Code code);

class Router final : public HttpHandler {
 public:
  // No key guards nothing. `metrics` may be null.
  Router(std::vector<std::string> api_keys, Metrics* metrics);

  // The last one added is asked last; its prefix should be empty.
  void Add(FrontEnd front_end);
  void SetDraining() { draining_ = true; }

  size_t BodyLimit(std::string_view path) const override;
  std::unique_ptr<Reply> Handle(HttpRequest request, std::function<void()> wake) override;
  std::string ErrorBody(std::string_view path, int status, std::string_view message) const override;
  bool draining() const override { return draining_; }

 private:
  const FrontEnd& FrontEndOf(std::string_view path) const;
  bool HasKey(const HttpRequest& request) const;
  std::unique_ptr<Reply> Dispatch(const FrontEnd& front_end, HttpRequest request,
                                  std::function<void()> wake) const;

  const std::vector<std::string> api_keys_;
  Metrics* const metrics_;
  std::vector<FrontEnd> front_ends_;
  std::atomic<bool> draining_{false};
};

// True when both are equal; takes the same time wherever they differ.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace tandem::serve
