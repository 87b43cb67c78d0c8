// RequestParser: parses the bytes of one HTTP/1.1 request into an HttpRequest, within the limits.
// It refuses framing that two programs could read in different ways, because a proxy in front of
// the server could be one of them. Does no I/O. Owned and used by one connection.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace tandem::serve {

class RequestParser {
 public:
  enum class State {
    kHeader,   // more bytes of the header are needed
    kBody,     // the header is complete, the body is not
    kDone,     // the request is complete
    kRefused,  // error() says why; the connection has to end
  };
  struct Error {
    int status = 0;
    std::string message;
  };

  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();
  RequestParser(const RequestParser&) = delete;
  RequestParser& operator=(const RequestParser&) = delete;

  // Consumes bytes from the front and returns their number. The caller passes the rest to the next
  // call, followed by new bytes. Returns at each change of the state.
  size_t Put(std::string_view bytes);

  State state() const;
  const Error& error() const;

  // The request so far: the header from kBody on; in kRefused possibly the path. Trailers are
  // dropped.
  const HttpRequest& request() const;
  bool is_head() const;  // a HEAD request: answered without a body; request() says GET
  bool is_http_1_0() const;
  bool keep_alive() const;
  bool expects_continue() const;

  // Limits the body, in kBody; refuses a request whose declared length exceeds the limit.
  void LimitBody(size_t bytes);
  void Refuse(int status, std::string message);
  HttpRequest TakeRequest();  // in kDone

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
