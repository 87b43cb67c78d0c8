// HttpLimits: the limits on clients, and the status that each violation gets.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/clock.h"

namespace tandem::serve {

struct HttpLimits {
  size_t header_bytes = 16 << 10;           // 431; also for an unfinished chunk size or trailer
  size_t headers = 100;                     // 431
  size_t uri_bytes = 8 << 10;               // 414
  size_t chunk_framing_bytes = 1 << 20;     // sizes, extensions and trailers of one body: 413
  size_t all_body_bytes = size_t{1} << 30;  // all bodies being read together: 503
  int connections = 4096;                   // 503
  int send_buffer_bytes = 128 << 10;        // the kernel's buffer of each connection
  Nanos handshake_timeout = std::chrono::seconds(10);    // of TLS: close
  Nanos header_timeout = std::chrono::seconds(10);       // 408
  Nanos body_timeout = std::chrono::seconds(60);         // 408
  Nanos idle_timeout = std::chrono::seconds(75);         // close
  Nanos write_stall_timeout = std::chrono::seconds(30);  // the client stopped reading: close
  // Without a byte of a stream: a comment keeps proxies from closing it. 0: never.
  Nanos keep_alive_interval = std::chrono::seconds(30);
  Nanos linger_timeout =
      std::chrono::seconds(2);  // for the client to close after the last response
};

}  // namespace tandem::serve
