#include "serve/http/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tandem::serve {
namespace {

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

std::optional<PathValues> Match(std::string_view pattern, std::string_view path) {
  const std::vector<std::string_view> wanted = Segments(pattern);
  const std::vector<std::string_view> given = Segments(path);
  if (wanted.size() != given.size()) return std::nullopt;
  PathValues values;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] == "{}") {
      values.emplace_back(given[i]);
    } else if (wanted[i] != given[i]) {
      return std::nullopt;
    }
  }
  return values;
}

// Counts the response when its status is known.
class CountingReply final : public Reply {
 public:
  CountingReply(std::unique_ptr<Reply> reply, Metrics& metrics, std::string_view front_end)
      : reply_(std::move(reply)), metrics_(metrics), front_end_(front_end) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    const Progress progress = reply_->Poll(head, out);
    if (progress != Progress::kPending && !counted_) {
      counted_ = true;
      metrics_.CountResponse(front_end_, head.status);
    }
    return progress;
  }

 private:
  const std::unique_ptr<Reply> reply_;
  Metrics& metrics_;
  const std::string_view front_end_;
  bool counted_ = false;
};

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

bool ConstantTimeEqual(std::string_view a, std::string_view b) {
  size_t difference = a.size() ^ b.size();
  for (size_t i = 0; i < b.size(); ++i) {
    const char left = i < a.size() ? a[i] : '\0';
    difference |= static_cast<unsigned char>(left) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

Router::Router(std::vector<std::string> api_keys, Metrics* metrics)
    : api_keys_(std::move(api_keys)), metrics_(metrics) {}

void Router::Add(FrontEnd front_end) { front_ends_.push_back(std::move(front_end)); }

const FrontEnd& Router::FrontEndOf(std::string_view path) const {
  for (const FrontEnd& front_end : front_ends_) {
    if (path.starts_with(front_end.path_prefix)) return front_end;
  }
  return front_ends_.back();
}

size_t Router::BodyLimit(std::string_view path) const { return FrontEndOf(path).body_limit; }

std::string Router::ErrorBody(std::string_view path, int status, std::string_view message) const {
  return FrontEndOf(path).format_error(status, message);
}

bool Router::HasKey(const HttpRequest& request) const {
  if (api_keys_.empty()) return true;
  std::string_view given = request.Header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  if (!given.starts_with(kBearer)) return false;
  given.remove_prefix(kBearer.size());
  bool found = false;
  for (const std::string& key : api_keys_) found |= ConstantTimeEqual(given, key);
  return found;
}

std::unique_ptr<Reply> Router::Handle(HttpRequest request, std::function<void()> wake) {
  const FrontEnd& front_end = FrontEndOf(request.path);
  std::unique_ptr<Reply> reply = Dispatch(front_end, std::move(request), std::move(wake));
  if (metrics_ == nullptr) return reply;
  return std::make_unique<CountingReply>(std::move(reply), *metrics_, front_end.name);
}

std::unique_ptr<Reply> Router::Dispatch(const FrontEnd& front_end, HttpRequest request,
                                        std::function<void()> wake) const {
  const auto refuse = [&](int status, std::string_view message) {
    HttpHead head;
    head.status = status;
    if (status == 401) head.headers.emplace_back("WWW-Authenticate", "Bearer");
    if (status == 503) {
      head.headers.emplace_back("Retry-After", "1");
      head.close = true;
    }
    return MakeReply(std::move(head), front_end.format_error(status, message));
  };
  std::string allowed;
  for (const Route& route : front_end.routes) {
    const std::optional<PathValues> values = Match(route.pattern, request.path);
    if (!values) continue;
    if (route.method != request.method) {
      allowed += (allowed.empty() ? "" : ", ") + route.method;
      continue;
    }
    if (!route.is_health && !HasKey(request)) return refuse(401, "a valid API key is needed");
    if (!route.is_health && draining_) return refuse(503, "the server is shutting down");
    return route.handle(std::move(request), *values, std::move(wake));
  }
  if (!HasKey(request)) return refuse(401, "a valid API key is needed");
  if (allowed.empty()) return refuse(404, "Not Found");
  HttpHead head;
  head.status = 405;
  head.headers.emplace_back("Allow", allowed);
  return MakeReply(std::move(head), front_end.format_error(405, "Method Not Allowed"));
}

}  // namespace tandem::serve
