// A client's connection: reads a request, has it answered, writes the answer, and again. It lives
// on one event loop's thread and ends with that loop.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "serve/http/event_loop.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace tandem::serve {

// What the connections of one server share; any thread.
struct ConnectionShared {
  HttpHandler& handler;
  const HttpLimits limits;
  std::atomic<int> active_requests{0};  // whose response is not written yet
  std::atomic<int> connections{0};
  std::atomic<size_t> body_bytes{0};  // of the requests that are being read
};

// Takes over the connected socket `fd`. With a `farewell` the client gets that at once, and the
// connection ends. `loop` and `shared` outlive the connection. Any thread.
void StartConnection(int fd, bool is_ipv6, EventLoop& loop, ConnectionShared& shared,
                     std::unique_ptr<Reply> farewell = nullptr);

}  // namespace tandem::serve
