#include "comm/processes/mesh.h"

#include <immintrin.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <utility>

namespace tandem {
namespace {

// Ranks meet several times in a layer: sleeping in between would cost more than the layer.
constexpr auto kSpin = std::chrono::microseconds(50);

}  // namespace

Mesh::Mesh(int rank, std::vector<Socket> others)
    : rank_(rank),
      sockets_(std::move(others)),
      received_(sockets_.size()),
      counts_(sockets_.size()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  transfers_.reserve(2 * sockets_.size());
  polled_.reserve(2 * sockets_.size() + 1);
}

Mesh::~Mesh() { ::close(wake_); }

void Mesh::Send(int to, std::span<const std::byte> bytes) {
  transfers_.push_back({.peer = to,
                        .sends = true,
                        .header = {CountsOf(to).sent++, bytes.size()},
                        .data = const_cast<std::byte*>(bytes.data()),  // only read from
                        .bytes = bytes.size()});
}

void Mesh::Receive(int from, std::span<std::byte> bytes) {
  transfers_.push_back({.peer = from, .header = {}, .data = bytes.data(), .bytes = bytes.size()});
}

const std::byte* Mesh::Receive(int from, size_t bytes) {
  std::vector<std::byte>& room = received_[static_cast<size_t>(from)];
  if (room.size() < bytes) room.resize(bytes);
  Receive(from, std::span(room).first(bytes));
  return room.data();
}

bool Mesh::Exchange() {
  auto until = std::chrono::steady_clock::now() + kSpin;
  bool complete = false;
  while (!complete && !failed()) {
    bool moved = false;
    complete = true;
    for (Transfer& transfer : transfers_) {
      moved = Move(transfer) || moved;
      complete = complete && transfer.complete();
    }
    if (complete) break;
    if (moved) {
      until = std::chrono::steady_clock::now() + kSpin;
    } else if (std::chrono::steady_clock::now() < until) {
      _mm_pause();
    } else {
      Sleep();
    }
  }
  transfers_.clear();
  return !failed();
}

// Sends or receives what is possible now; false when that is nothing.
bool Mesh::Move(Transfer& transfer) {
  if (transfer.complete()) return false;
  const size_t of_header = std::min(transfer.done, sizeof(Header));
  const size_t of_bytes = transfer.done - of_header;
  std::array<iovec, 2> left = {
      iovec{reinterpret_cast<std::byte*>(&transfer.header) + of_header, sizeof(Header) - of_header},
      iovec{transfer.data + of_bytes, transfer.bytes - of_bytes}};
  const bool has_header = of_header == sizeof(Header);
  msghdr message{};
  message.msg_iov = left.data() + (has_header ? 1 : 0);
  message.msg_iovlen = has_header ? 1 : 2;
  const int fd = sockets_[static_cast<size_t>(transfer.peer)].fd();
  const ssize_t moved = transfer.sends ? ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                                       : ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (moved <= 0) {
    Fail(Unavailable("rank " + std::to_string(transfer.peer) + " has left"));
    return false;
  }
  transfer.done += static_cast<size_t>(moved);
  if (!transfer.sends && !has_header && transfer.done >= sizeof(Header)) Check(transfer);
  return true;
}

void Mesh::Check(const Transfer& received) {
  const uint64_t number = CountsOf(received.peer).received++;
  if (received.header.number == number && received.header.bytes == received.bytes) return;
  Fail(Internal("ranks " + std::to_string(rank_) + " and " + std::to_string(received.peer) +
                " are not at the same place"));
}

void Mesh::Sleep() {
  polled_.clear();
  for (const Transfer& transfer : transfers_) {
    if (transfer.complete()) continue;
    polled_.push_back({.fd = sockets_[static_cast<size_t>(transfer.peer)].fd(),
                       .events = static_cast<short>(transfer.sends ? POLLOUT : POLLIN),
                       .revents = 0});
  }
  polled_.push_back({.fd = wake_, .events = POLLIN, .revents = 0});
  ::poll(polled_.data(), polled_.size(), -1);
}

void Mesh::Fail(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  failed_.store(true, std::memory_order_release);
  for (const Socket& socket : sockets_) socket.Shutdown();
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_, &one, sizeof one));
}

Status Mesh::Look() {
  for (size_t peer = 0; peer < sockets_.size() && !failed(); ++peer) {
    if (!sockets_[peer].is_open() || !sockets_[peer].HasEnded()) continue;
    Fail(Unavailable("rank " + std::to_string(peer) + " has left"));
  }
  const MutexLock lock(mutex_);
  return failure_;
}

}  // namespace tandem
