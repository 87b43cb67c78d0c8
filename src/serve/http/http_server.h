// HttpServer: HTTP/1.1 over TCP, or over TLS. Each thread runs its own event loop; a connection
// lives on one of them, so its state is never shared. Each limit and time-out has its own status;
// when a client goes away its reply is destroyed within one turn of the loop. Owned by Server;
// Start and Stop from one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"
#include "serve/http/tls.h"

namespace tandem::serve {

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address of this machine, or "localhost"
  uint16_t port = 8000;            // 0: a free one
  int threads = 2;
  TlsFiles tls;  // without them connections are plain
  HttpLimits limits;
  // The header whose value is the request's id where x-request-id is not; lower case. Empty: none.
  std::string request_id_header = {};
};

class HttpServer {
 public:
  // Binds and serves. UNAVAILABLE when the port is taken; the message names one to try. Errors of
  // the certificate are those of TlsContext.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   HttpHandler& handler);
  // Calls Stop().
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // Requests whose response is not written yet.
  int active_requests() const;
  int open_connections() const;

  // Reads the certificate and its key again, for connections that come. On an error the old ones
  // stay.
  Status ReloadTls();

  // Closes every connection (their replies are destroyed) and ends the threads.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
