#include "serve/http/listen.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tandem::serve {
namespace {

constexpr int kPortsToTry = 50;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  void SetPort(uint16_t port) {
    // The port is in the same place for both address families.
    reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  }
  uint16_t Port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port); }
  sockaddr* Get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Result<Address> ParseAddress(const std::string& host) {
  const std::string numeric = host == "localhost" ? "127.0.0.1" : host;
  Address address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (::inet_pton(AF_INET, numeric.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    address.size = sizeof(*v4);
  } else if (::inet_pton(AF_INET6, numeric.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    address.size = sizeof(*v6);
  } else {
    return InvalidArgument(
        fmt::format("host: \"{}\" is not an IP address of this machine, and not localhost", host));
  }
  return address;
}

// The socket, or -1 and errno.
int TryListen(Address address, uint16_t port) {
  address.SetPort(port);
  const int fd = ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd, address.Get(), address.size) == 0 && ::listen(fd, SOMAXCONN) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

// The first port after `port` that is free; 0 if none of the next few is.
uint16_t FreePortBehind(const Address& address, uint16_t port) {
  for (int next = port + 1; next < 65536 && next <= port + kPortsToTry; ++next) {
    const int fd = TryListen(address, static_cast<uint16_t>(next));
    if (fd < 0) continue;
    ::close(fd);
    return static_cast<uint16_t>(next);
  }
  return 0;
}

}  // namespace

Result<ListeningSocket> Listen(const std::string& host, uint16_t port, std::string_view option) {
  TANDEM_ASSIGN_OR_RETURN(Address address, ParseAddress(host));
  const int fd = TryListen(address, port);
  if (fd >= 0) {
    ::getsockname(fd, address.Get(), &address.size);
    return ListeningSocket{fd, address.storage.ss_family == AF_INET6, address.Port()};
  }
  const int error = errno;
  if (error == EADDRINUSE) {
    return Unavailable(fmt::format("Port {} is in use; try --{} {}.", port, option,
                                   FreePortBehind(address, port)));
  }
  return FailedPrecondition(
      fmt::format("cannot listen on {} port {}: {}", host, port, std::strerror(error)));
}

Status CheckPort(const std::string& host, uint16_t port) {
  TANDEM_ASSIGN_OR_RETURN(const ListeningSocket socket, Listen(host, port));
  ::close(socket.fd);
  return {};
}

bool IsLoopback(const std::string& host) {
  const Result<Address> address = ParseAddress(host);
  if (!address.ok()) return false;
  if (address->storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address->storage);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address->storage);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

}  // namespace tandem::serve
