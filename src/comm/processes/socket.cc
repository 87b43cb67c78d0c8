#include "comm/processes/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace tandem {
namespace {

constexpr std::string_view kUnix = "unix:";
// How long a machine may be silent until it counts as gone. A process that ends is noticed at once.
constexpr int kSilenceSeconds = 3;
// The same while bytes are on their way to it. A process that is stopped for a while takes none
// either, although its machine is there: it gets as long as a step may take.
constexpr int kUntakenSeconds = 30;

std::string ErrorText(int error) { return std::strerror(error); }  // NOLINT(concurrency-mt-unsafe)

// An address in the system's form.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* plain() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<Endpoint> UnixEndpoint(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // A leading zero: the name is the kernel's, and goes with the last socket that has it.
  if (name.empty() || name.size() + 1 > sizeof(address.sun_path)) {
    return InvalidArgument("'unix:" + std::string(name) + "' is no name of a socket");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  Endpoint endpoint;
  endpoint.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  std::memcpy(&endpoint.storage, &address, sizeof address);
  return endpoint;
}

Result<std::vector<Endpoint>> TcpEndpoints(const std::string& address, bool to_listen) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  int number = 0;
  const auto [end, failed] = std::from_chars(port.data(), port.data() + port.size(), number);
  const bool is_port =
      failed == std::errc{} && end == port.data() + port.size() && number >= 0 && number <= 65'535;
  if (!is_port || host.empty()) {
    return InvalidArgument("'" + address + "' is no address: HOST:PORT");
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  // The name of a machine that is starting may not be known yet.
  if (error != 0) return Unavailable(host + " is not known: " + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<Endpoint> endpoints;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Endpoint& endpoint = endpoints.emplace_back();
    endpoint.size = a->ai_addrlen;
    std::memcpy(&endpoint.storage, a->ai_addr, a->ai_addrlen);
  }
  return endpoints;
}

Result<std::vector<Endpoint>> EndpointsOf(const std::string& address, bool to_listen) {
  if (!IsUnixAddress(address)) return TcpEndpoints(address, to_listen);
  TANDEM_ASSIGN_OR_RETURN(const Endpoint endpoint,
                          UnixEndpoint(std::string_view(address).substr(kUnix.size())));
  return std::vector<Endpoint>{endpoint};
}

Socket Open(const Endpoint& endpoint) {
  return Socket(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// Small messages go at once, and a machine that has vanished is noticed.
void Tune(const Socket& socket) {
  ::fcntl(socket.fd(), F_SETFL, ::fcntl(socket.fd(), F_GETFL) | O_NONBLOCK);
  const auto set = [&socket](int level, int name, int value) {
    ::setsockopt(socket.fd(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  // Refused by Unix sockets, which need none of it.
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, kSilenceSeconds - 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * kUntakenSeconds);
}

// Whether a process of the same user is on the other side of a Unix socket.
bool IsOwnUser(const Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         peer.uid == ::getuid();
}

Status Gone() { return Unavailable("the other side has gone"); }

// Waits until the socket can be read or written. The clock is looked at after each wait alone.
Status AwaitReady(const Socket& socket, short events, Nanos until) {
  pollfd polled{.fd = socket.fd(), .events = events, .revents = 0};
  int timeout = -1;
  if (until != Nanos::max()) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - SteadyClock().Now());
    timeout = static_cast<int>(std::max<int64_t>(left.count() + 1, 0));
  }
  const int ready = ::poll(&polled, 1, timeout);
  if (ready == 0) return DeadlineExceeded("nothing came in time");
  if (ready < 0 && errno != EINTR) return Unavailable("poll: " + ErrorText(errno));
  return {};
}

Nanos Until(Nanos timeout) {
  return timeout == Nanos::max() ? timeout : SteadyClock().Now() + timeout;
}

}  // namespace

bool IsUnixAddress(std::string_view address) { return address.starts_with(kUnix); }

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

bool Socket::HasEnded() const {
  std::byte next{};
  const ssize_t received = ::recv(fd_, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

void Socket::Shutdown() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

Status SendAll(const Socket& socket, std::span<const std::byte> bytes, Nanos timeout) {
  const Nanos until = Until(timeout);
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      TANDEM_RETURN_IF_ERROR(AwaitReady(socket, POLLOUT, until));
    } else if (errno != EINTR) {
      return Gone();
    }
  }
  return {};
}

Status ReceiveAll(const Socket& socket, std::span<std::byte> bytes, Nanos timeout) {
  const Nanos until = Until(timeout);
  while (!bytes.empty()) {
    const ssize_t received = ::recv(socket.fd(), bytes.data(), bytes.size(), 0);
    if (received > 0) {
      bytes = bytes.subspan(static_cast<size_t>(received));
    } else if (received < 0 && errno == EAGAIN) {
      TANDEM_RETURN_IF_ERROR(AwaitReady(socket, POLLIN, until));
    } else if (received == 0 || errno != EINTR) {
      return Gone();
    }
  }
  return {};
}

Result<Socket> ConnectTo(const std::string& address) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints,
                          EndpointsOf(address, /*to_listen=*/false));
  int error = EADDRNOTAVAIL;
  for (const Endpoint& endpoint : endpoints) {
    Socket socket = Open(endpoint);
    if (socket.is_open() && ::connect(socket.fd(), endpoint.plain(), endpoint.size) == 0) {
      if (IsUnixAddress(address) && !IsOwnUser(socket)) {
        return Status(Code::kUnauthenticated, address + ": a process of another user is there");
      }
      Tune(socket);
      return socket;
    }
    error = errno;
  }
  return Unavailable(address + ": " + ErrorText(error));
}

std::string OwnHost(const Socket& socket) {
  Endpoint own;
  own.size = sizeof own.storage;
  auto* const plain = reinterpret_cast<sockaddr*>(&own.storage);
  if (::getsockname(socket.fd(), plain, &own.size) != 0 || own.storage.ss_family == AF_UNIX) {
    return std::string(kUnix);
  }
  std::array<char, NI_MAXHOST> host{};
  ::getnameinfo(plain, own.size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST);
  const std::string name(host.data());
  return own.storage.ss_family == AF_INET6 ? "[" + name + "]" : name;
}

Result<Listener> Listener::Bind(const std::string& address) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Endpoint> endpoints,
                          EndpointsOf(address, /*to_listen=*/true));
  Listener listener;
  listener.is_unix_ = IsUnixAddress(address);
  int error = EADDRNOTAVAIL;
  for (const Endpoint& endpoint : endpoints) {
    Socket socket = Open(endpoint);
    const int yes = 1;
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (socket.is_open() && ::bind(socket.fd(), endpoint.plain(), endpoint.size) == 0 &&
        ::listen(socket.fd(), SOMAXCONN) == 0) {
      listener.socket_ = std::move(socket);
      break;
    }
    error = errno;
  }
  if (!listener.socket_.is_open()) return FailedPrecondition(address + ": " + ErrorText(error));
  Tune(listener.socket_);
  if (listener.is_unix_) {
    listener.port_ = address.substr(kUnix.size());
    return listener;
  }
  Endpoint own;
  own.size = sizeof own.storage;
  auto* const plain = reinterpret_cast<sockaddr*>(&own.storage);
  ::getsockname(listener.socket_.fd(), plain, &own.size);
  std::array<char, NI_MAXSERV> port{};
  ::getnameinfo(plain, own.size, nullptr, 0, port.data(), port.size(), NI_NUMERICSERV);
  listener.port_ = port.data();
  return listener;
}

Result<Socket> Listener::Accept(Nanos timeout) const {
  const Nanos until = Until(timeout);
  for (;;) {
    Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.is_open()) {
      TANDEM_RETURN_IF_ERROR(AwaitReady(socket_, POLLIN, until));
      continue;
    }
    if (is_unix_ && !IsOwnUser(socket)) {
      return Status(Code::kUnauthenticated, "a process of another user came");
    }
    Tune(socket);
    return socket;
  }
}

}  // namespace tandem
