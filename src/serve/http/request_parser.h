// RequestParser: the bytes of one HTTP/1.1 request in, an HttpRequest out, within the limits. It
// refuses framing that two programs could read in two ways, because a proxy in front of the server
// would be one of them. Does no I/O. Owned and used by one connection.
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

  // Takes bytes from the front and returns how many. The rest belongs to the next call, with more
  // after it. Returns at each change of the state.
  size_t Put(std::string_view bytes);

  State state() const;
  const Error& error() const;

  // What is known so far: the header from kBody on; in kRefused perhaps the path. Trailers are
  // dropped.
  const HttpRequest& request() const;
  bool is_head() const;  // a request whose answer goes without its body; request() says GET
  bool is_http_1_0() const;
  bool keep_alive() const;
  bool expects_continue() const;

  // Bounds the body, in kBody; refuses one that is declared to be larger.
  void LimitBody(size_t bytes);
  void Refuse(int status, std::string message);
  HttpRequest TakeRequest();  // in kDone

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
