// HTTP as front ends see it: a request, and a reply that is polled. This header knows neither
// sockets nor the HTTP parser.
//
// A Reply is an answer in progress. The transport polls it at once and again after each wake(); it
// belongs to the connection's thread and is destroyed when it has returned kLast or kBroken, or
// when the client is gone: its destructor cancels what still runs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tandem::serve {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;   // "GET"
  std::string path;     // without the query, not decoded
  std::string query;    // what follows the path's "?", not decoded
  std::string host;     // the server's name as the client gave it; lower case, no port, or empty
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string caller;  // identifies its API key if there are several; set by the router
  std::string id;      // x-request-id: the client's, or one of ours; sent back by the transport

  // The first header of that (lower-case) name; empty when there is none.
  std::string_view Header(std::string_view name) const;
  // The first parameter of that name in the query, decoded.
  std::optional<std::string> Parameter(std::string_view name) const;
};

struct HttpHead {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  bool close = false;  // the connection ends after this response
  // Not sent: what the log says of the request besides its route, complete with the last result.
  // Never of its content.
  std::string log_note;
};

class Reply {
 public:
  enum class Progress {
    kPending,  // nothing yet: poll again after wake()
    kMore,     // `out` got bytes (at most some tens of KiB): poll again when they are written
    kLast,     // `out` got the last bytes
    // `out` may have got bytes; the rest will never come. The connection ends without the
    // response's end, so that the client does not take what it has for the whole answer.
    kBroken,
  };
  virtual ~Reply() = default;
  // The first result other than kPending sets `head`; later ones leave it alone.
  virtual Progress Poll(HttpHead& head, std::string& out) = 0;
  // Called after a long wait without a byte. True if `out` got bytes that mean nothing and keep the
  // connection in use; they begin the response as those of Poll do.
  virtual bool KeepAlive(HttpHead& /*head*/, std::string& /*out*/) { return false; }
  // How long that wait is; none: as the transport's limits have it. When KeepAlive has returned
  // false, the reply is polled again.
  virtual std::optional<Nanos> patience() const { return std::nullopt; }
};

// The decision on a request of which only the header has been read.
struct Admission {
  size_t body_limit = 0;           // bytes; a larger body gets 413
  std::unique_ptr<Reply> refusal;  // the answer, before a byte of the body is read; or null
};

// Any thread may call any of these; none may block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called with the header of a request, before its body is read.
  virtual Admission Admit(const HttpRequest& header) = 0;
  // `wake` may be called from any thread, also after the reply is gone.
  virtual std::unique_ptr<Reply> Handle(HttpRequest request, std::function<void()> wake) = 0;
  // The answer to a request that the transport itself refuses, in the format of the front end for
  // `path` (empty if the request could not be read that far).
  virtual std::unique_ptr<Reply> Error(std::string_view path, int status,
                                       std::string_view message) = 0;
  // True when new requests are refused: connections should end.
  virtual bool draining() const = 0;
};

// A reply that is complete at once.
std::unique_ptr<Reply> MakeReply(HttpHead head, std::string body);
std::unique_ptr<Reply> MakeReply(int status, std::string json);

// The reply with more headers, whatever its status.
std::unique_ptr<Reply> AddHeader(std::unique_ptr<Reply> reply, std::string name, std::string value);
std::unique_ptr<Reply> AddHeaders(std::unique_ptr<Reply> reply, HttpHeaders headers);

// "Too Many Requests" and so on.
std::string_view HttpReason(int status);

}  // namespace tandem::serve
