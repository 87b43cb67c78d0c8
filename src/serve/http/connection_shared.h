// ConnectionShared: state shared by the connections of one server. Owned by HttpServer; safe on any
// thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "serve/http/limits.h"
#include "serve/http/message.h"
#include "serve/http/tls.h"

namespace tandem::serve {

struct ConnectionShared {
  ConnectionShared(HttpHandler& http_handler, const HttpLimits& http_limits, std::string id_header,
                   std::shared_ptr<const TlsContext> tls)
      : handler(http_handler),
        limits(http_limits),
        request_id_header(std::move(id_header)),
        tls_(std::move(tls)) {}

  // That of new connections; null: they are plain.
  std::shared_ptr<const TlsContext> Tls() const {
    const MutexLock lock(mutex_);
    return tls_;
  }
  void SetTls(std::shared_ptr<const TlsContext> tls) {
    const MutexLock lock(mutex_);
    tls_ = std::move(tls);
  }

  HttpHandler& handler;
  const HttpLimits limits;
  const std::string request_id_header;  // besides x-request-id; empty: none
  std::atomic<int> active_requests{0};  // whose response is not written yet
  std::atomic<int> connections{0};
  std::atomic<size_t> body_bytes{0};  // of the requests that are being read

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const TlsContext> tls_ TANDEM_GUARDED_BY(mutex_);
};

// Increments a counter while it lives.
class Count {
 public:
  explicit Count(std::atomic<int>& count) : count_(count) { ++count_; }
  ~Count() { --count_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  std::atomic<int>& count_;
};

// One connection's share of the memory that all bodies may take, while it lives.
class BodyShare {
 public:
  explicit BodyShare(std::atomic<size_t>& all) : all_(all) {}
  ~BodyShare() { all_ -= mine_; }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // The sum over all connections when this one's share is `bytes`.
  size_t Set(size_t bytes) {
    const size_t more = bytes - mine_;  // of fewer bytes it wraps around, and so does the sum
    mine_ = bytes;
    return all_ += more;
  }

 private:
  std::atomic<size_t>& all_;
  size_t mine_ = 0;
};

}  // namespace tandem::serve
