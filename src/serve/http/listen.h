// A listening TCP socket, and the messages for its possible errors. Safe on any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace tandem::serve {

struct ListeningSocket {
  int fd = -1;  // owned by whoever holds this
  bool is_ipv6 = false;
  uint16_t port = 0;  // as bound
};

// `host` is an address of this machine or "localhost"; port 0 takes a free one. UNAVAILABLE "Port
// 8000 is in use; try --port 8001." names a port that is free; `option` is the port's option.
Result<ListeningSocket> Listen(const std::string& host, uint16_t port,
                               std::string_view option = "port");

// Whether Listen would succeed now: what takes long before it need not be done in vain.
Status CheckPort(const std::string& host, uint16_t port);

// Whether only programs on this machine can reach `host`.
bool IsLoopback(const std::string& host);

}  // namespace tandem::serve
