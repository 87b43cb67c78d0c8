// Router: path and method → front end. Also the functions shared by all front ends: access checks,
// web pages of other origins, refusing requests while the server drains, 404 and 405, and the
// count of responses. Routes are
// added before the server starts; after that any thread may use it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "serve/http/access.h"
#include "serve/http/cors.h"
#include "serve/http/message.h"

namespace tandem::serve {

// The decoded values of a route's {} and {*}, in order; a value may contain a slash.
using PathValues = std::vector<std::string>;
using RouteFunction = std::function<std::unique_ptr<Reply>(HttpRequest, const PathValues&,
                                                           std::function<void()> wake)>;

// How a front end writes an error.
using ErrorFormat = std::function<std::string(int status, std::string_view message)>;

struct Route {
  std::string method;
  // "/v2/models/{}/generate"; a {} matches one segment of the path, a {*} at the end all the rest.
  std::string pattern;
  RouteFunction handle;
  bool is_health = false;     // answers without a key and while draining; takes only a tiny body
  bool decodes_body = false;  // takes a body under a Content-Encoding; for others it gets 415
  // By a request's header: whether it is answered while draining too, as what earlier requests
  // began. Empty: none is.
  std::function<bool(const HttpRequest&)> continues_work = {};
};

struct FrontEnd {
  std::string name;         // in metrics
  std::string path_prefix;  // "/v2"; empty for the one that answers unknown paths
  size_t body_limit = 16 << 20;
  ErrorFormat format_error;
  std::vector<Route> routes;
  // Work that goes on without a request, for which a drain waits. Empty: there is none.
  std::function<int()> num_detached = {};
};

// The HTTP status of an error.
int HttpStatusOf(Code code);

// Called for every response with its front end's name and its status.
using ResponseCounter = std::function<void(std::string_view front_end, int status)>;

class Router final : public HttpHandler {
 public:
  // `count` may be empty.
  Router(Access access, Cors cors, ResponseCounter count);

  // Front ends are tried in the order in which they were added; the last one's prefix should be
  // empty.
  void Add(FrontEnd front_end);
  void SetDraining() { draining_ = true; }
  int num_detached() const;  // of all front ends
  // Every route; lives as long as the router.
  std::vector<const Route*> Routes() const;

  Admission Admit(const HttpRequest& header) override;
  std::unique_ptr<Reply> Handle(HttpRequest request, std::function<void()> wake) override;
  std::unique_ptr<Reply> Error(std::string_view path, int status,
                               std::string_view message) override;
  bool draining() const override { return draining_; }

 private:
  struct Found;  // the routes that match a request

  const FrontEnd& FrontEndOf(std::string_view path) const;
  static Found Find(const FrontEnd& front_end, const HttpRequest& request);
  // Of a path without a route: what it is, and a path with one that the client may have meant.
  std::string NotFound(const HttpRequest& request) const;
  // `route` may be null.
  std::unique_ptr<Reply> Refuse(const FrontEnd& front_end, const HttpRequest& request,
                                const Route* route, bool is_preflight = false) const;
  std::unique_ptr<Reply> Counted(const FrontEnd& front_end, std::unique_ptr<Reply> reply) const;
  // Counted, and with the headers for a page of this origin.
  std::unique_ptr<Reply> Finished(const FrontEnd& front_end, std::string_view origin,
                                  std::unique_ptr<Reply> reply) const;

  const Access access_;
  const Cors cors_;
  const ResponseCounter count_;
  std::vector<FrontEnd> front_ends_;
  std::atomic<bool> draining_{false};
};

}  // namespace tandem::serve
