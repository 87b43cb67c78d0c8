#include "sources/testing/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

#include "base/check.h"

namespace tandem::testing {
namespace {

bool SendAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

ServedRequest Parsed(const std::string& head) {
  ServedRequest request;
  size_t begin = head.find("\r\n");
  const std::string line = head.substr(0, begin);
  const size_t first = line.find(' ');
  request.method = line.substr(0, first);
  request.target = line.substr(first + 1, line.rfind(' ') - first - 1);
  while (begin + 2 < head.size()) {
    const size_t end = head.find("\r\n", begin + 2);
    const std::string header = head.substr(begin + 2, end - begin - 2);
    begin = end;
    const size_t colon = header.find(':');
    if (colon == std::string::npos) continue;
    std::string name = header.substr(0, colon);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    request.headers[name] =
        header.substr(std::min(header.find_first_not_of(' ', colon + 1), header.size()));
  }
  return request;
}

}  // namespace

std::string ServedRequest::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  TANDEM_CHECK(::bind(listener_, plain, size) == 0 && ::listen(listener_, 64) == 0 &&
                   ::getsockname(listener_, plain, &size) == 0,
               "no port for a test");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

HttpServer::~HttpServer() {
  stops_ = true;
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
  ::close(listener_);
}

std::string HttpServer::Url(const std::string& host) const {
  return fmt::format("http://{}:{}", host, port_);
}

std::vector<ServedRequest> HttpServer::Requests() const {
  const MutexLock lock(mutex_);
  return requests_;
}

ServedReply HttpServer::Ranged(const ServedRequest& request, const std::string& file) {
  const std::string range = request.Header("range");
  long long first = 0;
  long long last = 0;
  if (std::sscanf(range.c_str(), "bytes=%lld-%lld", &first, &last) != 2) return {.body = file};
  const auto size = static_cast<long long>(file.size());
  last = std::min(last, size - 1);
  return {.status = 206,
          .headers = {fmt::format("Content-Range: bytes {}-{}/{}", first, last, size)},
          .body = file.substr(static_cast<size_t>(first), static_cast<size_t>(last - first + 1))};
}

void HttpServer::Accept() {
  while (!stops_) {
    pollfd ready{.fd = listener_, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, 20) <= 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd >= 0) threads_.emplace_back([this, fd] { Serve(fd); });
  }
}

void HttpServer::Serve(int fd) {
  std::string head;
  std::array<char, 4096> buffer{};
  while (head.find("\r\n\r\n") == std::string::npos) {
    const ssize_t got = ::recv(fd, buffer.data(), buffer.size(), 0);
    if (got <= 0) break;
    head.append(buffer.data(), static_cast<size_t>(got));
  }
  if (head.find("\r\n\r\n") != std::string::npos) {
    const ServedRequest request = Parsed(head);
    {
      const MutexLock lock(mutex_);
      requests_.push_back(request);
    }
    const ServedReply reply = handler_(request);
    std::string text = fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\nConnection: close\r\n",
                                   reply.status, reply.body.size());
    for (const std::string& header : reply.headers) text += header + "\r\n";
    std::string body = request.method == "HEAD" ? "" : reply.body;
    if (reply.cut_after >= 0)
      body.resize(std::min(body.size(), static_cast<size_t>(reply.cut_after)));
    const size_t held = reply.pause_before_end.count() > 0 && !body.empty() ? 1 : 0;
    bool sent = SendAll(fd, text + "\r\n") &&
                SendAll(fd, std::string_view(body).substr(0, body.size() - held));
    for (auto left = reply.pause_before_end; sent && left.count() > 0 && !stops_;
         left -= std::chrono::milliseconds(10)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (held > 0 && sent) SendAll(fd, std::string_view(body).substr(body.size() - held));
  }
  ::shutdown(fd, SHUT_RDWR);
  ::close(fd);
}

}  // namespace tandem::testing
