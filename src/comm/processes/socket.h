// Connections between the processes of one model: streams of bytes over TCP, or within a machine
// over Unix sockets that have a name and no file. Sockets do not block; the functions here wait.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace tandem {

// One end of a connection. Shutdown is safe on any thread while others use the socket.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  // Ends what either side waits for.
  void Shutdown() const;
  // Whether the other side has gone, and nothing that it sent is left to be read.
  bool HasEnded() const;

 private:
  int fd_ = -1;
};

// All of the bytes. UNAVAILABLE when the other side has gone, DEADLINE_EXCEEDED after `timeout`.
Status SendAll(const Socket& socket, std::span<const std::byte> bytes,
               Nanos timeout = Nanos::max());
Status ReceiveAll(const Socket& socket, std::span<std::byte> bytes, Nanos timeout = Nanos::max());

// "HOST:PORT", "[::1]:PORT", or "unix:NAME". UNAVAILABLE when nobody listens there,
// UNAUTHENTICATED when another user listens at a Unix socket.
Result<Socket> ConnectTo(const std::string& address);

// Whether it is an address within the machine, where the system tells who connects.
bool IsUnixAddress(std::string_view address);

// The name that this side of a connection has: "127.0.0.1", "[::1]", "unix:". Others reach this
// machine under it.
std::string OwnHost(const Socket& socket);

class Listener {
 public:
  // As for ConnectTo; port 0: any free one. INVALID_ARGUMENT for what is no address, UNAVAILABLE
  // when its name is not known (yet), FAILED_PRECONDITION when it cannot be listened at.
  static Result<Listener> Bind(const std::string& address);

  // The port, or the name of a Unix socket.
  const std::string& port() const { return port_; }
  // DEADLINE_EXCEEDED when nobody comes within `timeout`. On a Unix socket only processes of the
  // same user may come: UNAUTHENTICATED.
  Result<Socket> Accept(Nanos timeout) const;

 private:
  Socket socket_;
  std::string port_;
  bool is_unix_ = false;
};

}  // namespace tandem
