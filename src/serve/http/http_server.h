// HttpServer: HTTP/1.1 over TCP. Each thread runs its own event loop; a connection lives on one of
// them, so nothing about it is shared. Limits and time-outs answer with the exact status; a client
// that goes away destroys its reply within one turn of the loop. Owned by Server; Start and Stop
// from one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "serve/http/message.h"

namespace tandem::serve {

struct HttpLimits {
  size_t header_bytes = 16 << 10;                        // beyond: 431
  size_t headers = 100;                                  // 431
  size_t uri_bytes = 8 << 10;                            // 414
  size_t body_chunks = 65536;                            // non-empty ones of a chunked body: 413
  int connections = 4096;                                // 503
  int send_buffer_bytes = 128 << 10;                     // of the kernel's, for each connection
  Nanos header_timeout = std::chrono::seconds(10);       // 408
  Nanos body_timeout = std::chrono::seconds(60);         // 408
  Nanos idle_timeout = std::chrono::seconds(75);         // close
  Nanos write_stall_timeout = std::chrono::seconds(30);  // no room for what is to be written: close
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address of this machine, or "localhost"
  uint16_t port = 8000;            // 0: a free one
  int threads = 2;
  HttpLimits limits;
};

class HttpServer {
 public:
  // Binds and serves. UNAVAILABLE when the port is taken, with one that may be tried.
  static Result<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                   HttpHandler& handler);
  // Stop()s.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  // Requests whose response is not written yet.
  int active_requests() const;
  int open_connections() const;

  // Closes every connection (their replies are destroyed) and ends the threads.
  void Stop();

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::serve
