#include "serve/grpc/connection_gate.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "serve/http/listen.h"

namespace tandem::serve {
namespace {

constexpr auto kWithoutDescriptors = std::chrono::milliseconds(10);  // until accepting once more

bool Watch(int events, int descriptor, uint32_t what) {
  epoll_event event{};
  event.events = what;
  event.data.fd = descriptor;
  return ::epoll_ctl(events, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::Open(const std::string& host,
                                                             uint16_t port) {
  TANDEM_ASSIGN_OR_RETURN(const ListeningSocket socket, Listen(host, port, "grpc_port"));
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(socket.fd, socket.port));
  gate->events_ = ::epoll_create1(EPOLL_CLOEXEC);
  gate->end_ = ::eventfd(0, EFD_CLOEXEC);
  const int flags = ::fcntl(gate->listener_, F_GETFL);
  if (gate->events_ < 0 || gate->end_ < 0 || flags < 0 ||
      ::fcntl(gate->listener_, F_SETFL, flags | O_NONBLOCK) != 0 ||
      !Watch(gate->events_, gate->listener_, EPOLLIN) ||
      !Watch(gate->events_, gate->end_, EPOLLIN)) {
    return ResourceExhausted("too few descriptors to listen: raise the limit (ulimit -n)");
  }
  return gate;
}

ConnectionGate::ConnectionGate(int listener, uint16_t port) : port_(port), listener_(listener) {}

ConnectionGate::~ConnectionGate() {
  Stop();
  for (const int descriptor : {listener_, events_, end_}) {
    if (descriptor >= 0) ::close(descriptor);
  }
}

void ConnectionGate::Start(int most_connections, std::function<void(int)> take) {
  most_connections_ = most_connections;
  take_ = std::move(take);
  thread_ = std::thread([this] { Run(); });
}

void ConnectionGate::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  const ssize_t written = ::write(end_, &one, sizeof(one));
  TANDEM_CHECK(written == sizeof(one), "an eventfd takes its first number");
  thread_.join();
  ::shutdown(listener_, SHUT_RDWR);  // clients are refused, and do not wait in its queue
  for (const int connection : watched_) ::close(connection);
  watched_.clear();
  open_ = 0;
}

void ConnectionGate::Run() {
  std::array<epoll_event, 64> happened{};
  while (true) {
    const int count =
        ::epoll_wait(events_, happened.data(), static_cast<int>(happened.size()), /*timeout=*/-1);
    for (int i = 0; i < count; ++i) {
      const int descriptor = happened[i].data.fd;
      if (descriptor == end_) return;
      if (descriptor == listener_) {
        Accept();
      } else if (watched_.erase(descriptor) > 0) {
        ::close(descriptor);  // which also ends the watch
        --open_;
      }
    }
  }
}

void ConnectionGate::Accept() {
  while (true) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (connection < 0) {
      if (errno == EMFILE || errno == ENFILE) std::this_thread::sleep_for(kWithoutDescriptors);
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    const int second = open_ < most_connections_ ? ::fcntl(connection, F_DUPFD_CLOEXEC, 0) : -1;
    if (second < 0 || !Watch(events_, second, EPOLLRDHUP)) {
      if (second >= 0) ::close(second);
      ::close(connection);
      continue;
    }
    const int on = 1;
    ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    watched_.insert(second);
    ++open_;
    take_(connection);
  }
}

}  // namespace tandem::serve
