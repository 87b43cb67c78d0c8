#include "serve/http/message.h"

#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

class CompleteReply final : public Reply {
 public:
  CompleteReply(HttpHead head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    head = std::move(head_);
    out = std::move(body_);
    return Progress::kLast;
  }

 private:
  HttpHead head_;
  std::string body_;
};

class ReplyWithHeaders final : public Reply {
 public:
  ReplyWithHeaders(std::unique_ptr<Reply> reply, HttpHeaders headers)
      : reply_(std::move(reply)), headers_(std::move(headers)) {}

  Progress Poll(HttpHead& head, std::string& out) override {
    const Progress progress = reply_->Poll(head, out);
    if (progress != Progress::kPending) Add(head);
    return progress;
  }
  bool KeepAlive(HttpHead& head, std::string& out) override {
    const bool has_bytes = reply_->KeepAlive(head, out);
    if (has_bytes) Add(head);
    return has_bytes;
  }
  std::optional<Nanos> patience() const override { return reply_->patience(); }

 private:
  void Add(HttpHead& head) {
    for (auto& header : headers_) head.headers.push_back(std::move(header));
    headers_.clear();
  }

  const std::unique_ptr<Reply> reply_;
  HttpHeaders headers_;  // empty once they are added
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::optional<std::string> HttpRequest::Parameter(std::string_view name) const {
  for (auto& [key, value] : ParseQuery(query)) {
    if (key == name) return std::move(value);
  }
  return std::nullopt;
}

std::unique_ptr<Reply> MakeReply(HttpHead head, std::string body) {
  return std::make_unique<CompleteReply>(std::move(head), std::move(body));
}

std::unique_ptr<Reply> MakeReply(int status, std::string json) {
  HttpHead head;
  head.status = status;
  return MakeReply(std::move(head), std::move(json));
}

std::unique_ptr<Reply> AddHeader(std::unique_ptr<Reply> reply, std::string name,
                                 std::string value) {
  return AddHeaders(std::move(reply), {{std::move(name), std::move(value)}});
}

std::unique_ptr<Reply> AddHeaders(std::unique_ptr<Reply> reply, HttpHeaders headers) {
  return std::make_unique<ReplyWithHeaders>(std::move(reply), std::move(headers));
}

std::string_view HttpReason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 207:
      return "Multi-Status";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 424:
      return "Failed Dependency";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 507:
      return "Insufficient Storage";
    default:
      return "Unknown";
  }
}

}  // namespace tandem::serve
