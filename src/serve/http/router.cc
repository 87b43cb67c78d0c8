#include "serve/http/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

constexpr size_t kHealthBodyBytes = 4 << 10;  // anyone may send them
constexpr size_t kShownBytes = 200;           // of a path in a message

std::vector<std::string_view> Segments(std::string_view path) {
  std::vector<std::string_view> segments;
  while (!path.empty()) {
    path.remove_prefix(1);  // the slash
    const size_t end = std::min(path.find('/'), path.size());
    segments.push_back(path.substr(0, end));
    path.remove_prefix(end);
  }
  return segments;
}

// A path in a message.
std::string Shown(std::string_view path) { return Printable(path.substr(0, kShownBytes)); }

// What a client may have meant: a base URL without /v1 or with it twice, other case, slashes that
// are too many.
std::vector<std::string> SimilarPaths(std::string_view path) {
  if (path.size() > kShownBytes) return {};
  std::string plain;
  for (const char c : path) {
    if (c != '/' || !plain.ends_with('/')) plain += c;
  }
  while (plain.ends_with('/')) plain.pop_back();
  if (plain.empty()) return {};
  const std::string lower = LowerCase(plain);
  std::vector<std::string> similar = {plain, lower, "/v1" + plain, "/v1" + lower};
  if (lower.starts_with("/v1/v1/")) similar.push_back(lower.substr(3));
  std::erase(similar, path);
  return similar;
}

std::optional<PathValues> Match(std::string_view pattern, std::string_view path) {
  const std::vector<std::string_view> wanted = Segments(pattern);
  const std::vector<std::string_view> given = Segments(path);
  PathValues values;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i >= given.size()) return std::nullopt;
    if (wanted[i] == "{*}") {
      values.push_back(PercentDecode(path.substr(given[i].data() - path.data())));
      return values;
    }
    std::string segment = PercentDecode(given[i]);  // after the split: %2F does not split
    if (wanted[i] == "{}") {
      values.push_back(std::move(segment));
    } else if (wanted[i] != segment) {
      return std::nullopt;
    }
  }
  if (wanted.size() != given.size()) return std::nullopt;
  return values;
}

// Counts the response when its status is known.
class CountingReply final : public Reply {
 public:
  CountingReply(std::unique_ptr<Reply> reply, const ResponseCounter& count,
                std::string_view front_end)
      : reply_(std::move(reply)), count_(count), front_end_(front_end) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    const Progress progress = reply_->Poll(head, out);
    if (progress != Progress::kPending) Count(head);
    return progress;
  }
  bool KeepAlive(HttpHead& head, std::string& out) override {
    const bool has_bytes = reply_->KeepAlive(head, out);
    if (has_bytes) Count(head);
    return has_bytes;
  }
  std::optional<Nanos> patience() const override { return reply_->patience(); }

 private:
  void Count(const HttpHead& head) {
    if (!std::exchange(counted_, true)) count_(front_end_, head.status);
  }

  const std::unique_ptr<Reply> reply_;
  const ResponseCounter& count_;
  const std::string_view front_end_;
  bool counted_ = false;
};

std::unique_ptr<Reply> MakeError(const FrontEnd& front_end, int status, std::string_view message,
                                 HttpHeaders headers = {}) {
  HttpHead head;
  head.status = status;
  head.headers = std::move(headers);
  head.log_note = message;
  if (status == 503) {
    head.headers.emplace_back("Retry-After", "1");
    head.close = true;
  }
  return MakeReply(std::move(head), front_end.format_error(status, message));
}

}  // namespace

int HttpStatusOf(Code code) {
  switch (code) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return 400;
    case Code::kUnauthenticated:
      return 401;
    case Code::kNotFound:
      return 404;
    case Code::kResourceExhausted:
      return 429;
    case Code::kCancelled:
      return 499;
    case Code::kUnimplemented:
      return 501;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadlineExceeded:
      return 504;
    case Code::kDataLoss:
    case Code::kInternal:
      break;
  }
  return 500;
}

namespace {

bool IsEncoded(const HttpRequest& header) {
  const std::string_view encoding = header.Header("content-encoding");
  return !encoding.empty() && encoding != "identity";
}

}  // namespace

struct Router::Found {
  const Route* route = nullptr;
  PathValues values;
  std::string allowed;  // if no route matches: the methods of the path, if any
};

Router::Router(Access access, Cors cors, ResponseCounter count)
    : access_(std::move(access)), cors_(std::move(cors)), count_(std::move(count)) {}

void Router::Add(FrontEnd front_end) { front_ends_.push_back(std::move(front_end)); }

Admission Router::Admit(const HttpRequest& header) {
  const FrontEnd& front_end = FrontEndOf(header.path);
  const Found found = Find(front_end, header);
  const bool is_health = found.route != nullptr && found.route->is_health;
  Admission admission;
  admission.body_limit = is_health ? kHealthBodyBytes : front_end.body_limit;
  const bool is_preflight = cors_.is_on() && Cors::IsPreflight(header);
  // A browser's question comes without a key.
  std::unique_ptr<Reply> refusal = Refuse(front_end, header, found.route, is_preflight);
  if (refusal == nullptr && is_preflight) {
    refusal = cors_.AnswerPreflight(header, found.allowed);
  } else if (refusal == nullptr && found.route != nullptr && !found.route->decodes_body &&
             IsEncoded(header)) {
    refusal = MakeError(front_end, 415, "content-encoding must be identity");
  }
  if (refusal != nullptr) {
    admission.refusal = Finished(front_end, header.Header("origin"), std::move(refusal));
  }
  return admission;
}

std::unique_ptr<Reply> Router::Handle(HttpRequest request, std::function<void()> wake) {
  const FrontEnd& front_end = FrontEndOf(request.path);
  const Found found = Find(front_end, request);
  const std::string origin(request.Header("origin"));
  // Checked again: the server may have begun to drain while the body arrived.
  if (std::unique_ptr<Reply> refusal = Refuse(front_end, request, found.route)) {
    return Finished(front_end, origin, std::move(refusal));
  }
  if (found.route != nullptr) {
    request.caller = access_.CallerOf(request.Header("authorization"), request.Header("api-key"));
    return Finished(front_end, origin,
                    found.route->handle(std::move(request), found.values, std::move(wake)));
  }
  if (found.allowed.empty()) {
    return Finished(front_end, origin, MakeError(front_end, 404, NotFound(request)));
  }
  const std::string message =
      fmt::format("Method Not Allowed: {} takes {}", Shown(request.path), found.allowed);
  return Finished(front_end, origin,
                  MakeError(front_end, 405, message, {{"Allow", found.allowed}}));
}

int Router::num_detached() const {
  int count = 0;
  for (const FrontEnd& front_end : front_ends_) {
    if (front_end.num_detached) count += front_end.num_detached();
  }
  return count;
}

std::vector<const Route*> Router::Routes() const {
  std::vector<const Route*> routes;
  for (const FrontEnd& front_end : front_ends_) {
    for (const Route& route : front_end.routes) routes.push_back(&route);
  }
  return routes;
}

std::unique_ptr<Reply> Router::Error(std::string_view path, int status, std::string_view message) {
  const FrontEnd& front_end = FrontEndOf(path);
  return Counted(front_end, MakeError(front_end, status, message));
}

const FrontEnd& Router::FrontEndOf(std::string_view path) const {
  for (const FrontEnd& front_end : front_ends_) {
    if (path.starts_with(front_end.path_prefix)) return front_end;
  }
  return front_ends_.back();
}

Router::Found Router::Find(const FrontEnd& front_end, const HttpRequest& request) {
  Found found;
  for (const Route& route : front_end.routes) {
    std::optional<PathValues> values = Match(route.pattern, request.path);
    if (!values) continue;
    if (route.method == request.method) {
      found.route = &route;
      found.values = *std::move(values);
      return found;
    }
    found.allowed += (found.allowed.empty() ? "" : ", ") + route.method;
    if (route.method == "GET") found.allowed += ", HEAD";
  }
  return found;
}

std::string Router::NotFound(const HttpRequest& request) const {
  const std::string said =
      fmt::format("Not Found: {} is no path of this server", Shown(request.path));
  for (std::string& path : SimilarPaths(request.path)) {
    HttpRequest other;
    other.method = request.method;
    other.path = std::move(path);
    const Found found = Find(FrontEndOf(other.path), other);
    if (found.route == nullptr && found.allowed.empty()) continue;
    return fmt::format("{}; {} is", said, Shown(other.path));
  }
  return said;
}

std::unique_ptr<Reply> Router::Refuse(const FrontEnd& front_end, const HttpRequest& request,
                                      const Route* route, bool is_preflight) const {
  if (!access_.AllowsHost(request.host)) {
    return MakeError(front_end, 403,
                     fmt::format("host \"{}\" is not a name of this server; start it with "
                                 "--allowed_hosts {}, or ask for localhost",
                                 request.host, request.host));
  }
  const std::string_view origin = request.Header("origin");
  if (!cors_.Allows(origin) && !access_.AllowsOrigin(origin)) {
    return MakeError(front_end, 403,
                     "a web page of another origin may not use this server; name its origin in "
                     "--cors_origins if it should");
  }
  if (is_preflight || (route != nullptr && route->is_health)) return nullptr;
  if (!access_.HasKey(request.Header("authorization"), request.Header("api-key"))) {
    return MakeError(front_end, 401,
                     "a valid API key is needed, in the header Authorization: Bearer KEY",
                     {{"WWW-Authenticate", "Bearer"}});
  }
  const bool is_welcome =
      route != nullptr && route->continues_work && route->continues_work(request);
  if (draining_ && !is_welcome) return MakeError(front_end, 503, "the server is shutting down");
  return nullptr;
}

std::unique_ptr<Reply> Router::Finished(const FrontEnd& front_end, std::string_view origin,
                                        std::unique_ptr<Reply> reply) const {
  HttpHeaders headers = cors_.Headers(origin);
  if (!headers.empty()) reply = AddHeaders(std::move(reply), std::move(headers));
  return Counted(front_end, std::move(reply));
}

std::unique_ptr<Reply> Router::Counted(const FrontEnd& front_end,
                                       std::unique_ptr<Reply> reply) const {
  if (!count_) return reply;
  return std::make_unique<CountingReply>(std::move(reply), count_, front_end.name);
}

}  // namespace tandem::serve
