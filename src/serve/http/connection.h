// A client's connection: reads a request, gets its answer, writes it, and starts again. It lives on
// one event loop's thread and ends with that loop.
#pragma once

#include <memory>

#include "serve/http/connection_shared.h"
#include "serve/http/event_loop.h"
#include "serve/http/message.h"

namespace tandem::serve {

// Takes over the connected socket `fd`. With a `farewell` the client gets only that, and the
// connection ends. `loop` and `shared` outlive the connection. Any thread.
void StartConnection(int fd, bool is_ipv6, EventLoop& loop, ConnectionShared& shared,
                     std::unique_ptr<Reply> farewell = nullptr);

}  // namespace tandem::serve
