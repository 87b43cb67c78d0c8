// ConnectionGate: the listening socket of the gRPC server, which has no limit of connections of its
// own. One thread accepts connections, closes those above the limit and hands the rest to gRPC; a
// duplicate of each descriptor tells it when the connection ends. Owned by the server, whose thread
// calls every method; open_connections may be called on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "base/status.h"

namespace tandem::serve {

class ConnectionGate {
 public:
  // Errors are those of Listen.
  static Result<std::unique_ptr<ConnectionGate>> Open(const std::string& host, uint16_t port);
  // Calls Stop().
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  uint16_t port() const { return port_; }
  int open_connections() const { return open_; }

  // `take` gets each connection on the gate's thread, and owns it.
  void Start(int most_connections, std::function<void(int connection)> take);
  // Nothing is accepted any more; connections that were passed on stay.
  void Stop();

 private:
  ConnectionGate(int listener, uint16_t port);
  void Run();
  void Accept();

  const uint16_t port_;
  const int listener_;
  int events_ = -1;  // the epoll instance
  int end_ = -1;     // an eventfd: readable when the thread is to end
  int most_connections_ = 0;
  std::function<void(int)> take_;
  std::set<int> watched_;  // second descriptors of open connections; touched by the thread
  std::atomic<int> open_{0};
  std::thread thread_;
};

}  // namespace tandem::serve
