#include "serve/lmi/front_end.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "serve/http/wire.h"
#include "serve/lmi/errors.h"
#include "serve/lmi/invoke.h"
#include "serve/lmi/management.h"

namespace tandem::serve::lmi {
namespace {

// The name in a line of Prometheus' text: of a figure, or of a comment on one.
std::string_view NameIn(std::string_view line) {
  for (const std::string_view mark : {"# HELP ", "# TYPE "}) {
    if (line.starts_with(mark)) line.remove_prefix(mark.size());
  }
  return line.substr(0, line.find_first_of(" {"));
}

// The lines of the figures that `name[]=` of the query name, or all.
std::string Filtered(const std::string& text, std::string_view query) {
  std::vector<std::string> names;
  for (auto& [key, value] : ParseQuery(query)) {
    if (key == "name[]") names.push_back(std::move(value));
  }
  if (names.empty()) return text;
  std::string kept;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, std::min(rest.find('\n'), rest.size() - 1) + 1);
    rest.remove_prefix(line.size());
    if (std::ranges::count(names, NameIn(line)) > 0) kept += line;
  }
  return kept;
}

RouteFunction MetricsRoute(const Counters& counters, std::function<std::string()> metrics) {
  return [&counters, metrics = std::move(metrics)](const HttpRequest& request, const PathValues&,
                                                   const auto&) {
    HttpHead head;
    head.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return MakeReply(std::move(head), Filtered(metrics() + counters.Text(), request.query));
  };
}

}  // namespace

std::vector<FrontEnd> MakeFrontEnds(const Host& host, const Settings& settings,
                                    const openai::AnswerFormatNames& formats, Counters& counters,
                                    const Clock& clock, std::function<std::string()> metrics) {
  const auto invoker = std::make_shared<Invoker>(host, settings, formats, counters, clock);
  const RouteFunction invoke = [invoker](const HttpRequest& request, const PathValues& values,
                                         const std::function<void()>& wake) {
    return invoker->Invoke(request, values.empty() ? "" : values[0],
                           values.size() < 2 ? "" : values[1], wake);
  };
  const RouteFunction ping = [host, &settings, &counters](auto&&...) {
    PingAnswer answer = Ping(host, settings, counters.TooManyErrors());
    return MakeReply(answer.status, std::move(answer.body));
  };
  std::vector<FrontEnd> front_ends;
  const auto add = [&](std::string prefix, std::vector<Route> routes) {
    FrontEnd& front_end = front_ends.emplace_back();
    front_end.name = kFrontEndName;
    front_end.path_prefix = std::move(prefix);
    front_end.body_limit = settings.max_request_size;
    front_end.format_error = FormatServerError;
    front_end.routes = std::move(routes);
  };
  add("/ping", {{"GET", "/ping", ping, /*is_health=*/true}});
  const auto invocation = [&invoke](std::string pattern) {
    Route route{"POST", std::move(pattern), invoke};
    route.continues_work = Invoker::IsFetch;
    return route;
  };
  add("/invocations", {invocation("/invocations")});
  front_ends.back().num_detached = [invoker] { return invoker->num_asynchronous(); };
  add("/predictions", {invocation("/predictions/{}"), invocation("/predictions/{}/{}")});
  std::vector<Route> models = ModelRoutes(host, settings);
  models.push_back(invocation("/models/{}/invoke"));
  add("/models", std::move(models));
  add("/workflows", WorkflowRoutes(host, settings));
  add("/adapters", AdapterRoutes());
  add("/server",
      {{"GET", "/server/metrics", MetricsRoute(counters, std::move(metrics))}, LoggingRoute()});
  return front_ends;
}

}  // namespace tandem::serve::lmi
