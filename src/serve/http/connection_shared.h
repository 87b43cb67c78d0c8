// ConnectionShared: state shared by the connections of one server. Owned by HttpServer; safe on any
// thread.
#pragma once

#include <atomic>
#include <cstddef>

#include "serve/http/limits.h"
#include "serve/http/message.h"

namespace tandem::serve {

struct ConnectionShared {
  HttpHandler& handler;
  const HttpLimits limits;
  std::atomic<int> active_requests{0};  // whose response is not written yet
  std::atomic<int> connections{0};
  std::atomic<size_t> body_bytes{0};  // of the requests that are being read
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
