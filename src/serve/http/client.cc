#include "serve/http/client.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kMaxLine = 64 << 10;

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

template <typename T>
bool ParseNumber(std::string_view text, T& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

Status Broken(std::string_view what) {
  return Unavailable(fmt::format("{}: {}", what, std::strerror(errno)));
}

}  // namespace

Result<HttpEndpoint> ParseUrl(std::string_view url) {
  HttpEndpoint endpoint;
  if (const size_t scheme = url.find("://"); scheme != std::string_view::npos) {
    if (url.substr(0, scheme) != "http") return Unimplemented("only http:// URLs can be used");
    url.remove_prefix(scheme + 3);
  }
  const size_t slash = url.find('/');
  if (slash != std::string_view::npos) endpoint.path = std::string(url.substr(slash));
  while (endpoint.path.ends_with('/')) endpoint.path.pop_back();
  std::string_view authority = url.substr(0, slash);
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
    if (!ParseNumber(authority.substr(colon + 1), endpoint.port)) {
      return InvalidArgument(fmt::format("\"{}\" has no valid port", url));
    }
    authority = authority.substr(0, colon);
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return InvalidArgument(fmt::format("\"{}\" names no host", url));
  endpoint.host = std::string(authority);
  return endpoint;
}

std::string_view ClientResponse::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

HttpClient::HttpClient(std::string host, uint16_t port, Nanos timeout)
    : host_(std::move(host)), port_(port), timeout_(timeout) {}

HttpClient::~HttpClient() { Close(); }

HttpClient::HttpClient(HttpClient&& other) noexcept { *this = std::move(other); }

HttpClient& HttpClient::operator=(HttpClient&& other) noexcept {
  if (this == &other) return *this;
  Close();
  host_ = std::move(other.host_);
  port_ = other.port_;
  timeout_ = other.timeout_;
  fd_ = std::exchange(other.fd_, -1);
  buffer_ = std::move(other.buffer_);
  reused_ = other.reused_;
  chunked_ = other.chunked_;
  until_close_ = other.until_close_;
  bytes_left_ = other.bytes_left_;
  stream_ended_ = other.stream_ended_;
  stream_ = std::move(other.stream_);
  return *this;
}

void HttpClient::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  buffer_.clear();
  stream_.clear();
  stream_ended_ = true;
  reused_ = false;
}

void HttpClient::ShutdownWrite() const { ::shutdown(fd_, SHUT_WR); }

Status HttpClient::Connect() {
  if (fd_ >= 0) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(port_);
  if (const int error = ::getaddrinfo(host_.c_str(), port.c_str(), &hints, &found); error != 0) {
    return Unavailable(fmt::format("{}: {}", host_, ::gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr && fd_ < 0; a = a->ai_next) {
    fd_ = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd_ < 0) continue;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout_);
    const auto rest = std::chrono::duration_cast<std::chrono::microseconds>(timeout_ - seconds);
    const timeval limit{static_cast<time_t>(seconds.count()),
                        static_cast<suseconds_t>(rest.count())};
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (::connect(fd_, a->ai_addr, a->ai_addrlen) != 0) {
      const int error = errno;
      Close();
      errno = error;
    }
  }
  if (fd_ < 0) return Broken(fmt::format("cannot connect to {} port {}", host_, port_));
  return {};
}

Status HttpClient::WriteRaw(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Broken("cannot write to the server");
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return {};
}

Result<std::string> HttpClient::ReadRaw(size_t max_bytes) {
  if (buffer_.empty()) {
    buffer_.resize(max_bytes);
    ssize_t got = 0;
    do {
      got = ::recv(fd_, buffer_.data(), max_bytes, 0);
    } while (got < 0 && errno == EINTR);
    buffer_.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (got < 0) {
      return errno == EAGAIN ? DeadlineExceeded("the server did not answer in time")
                             : Broken("cannot read from the server");
    }
  }
  std::string out = buffer_.substr(0, max_bytes);
  buffer_.erase(0, out.size());
  return out;
}

Status HttpClient::Fill() {
  std::string before = std::move(buffer_);
  buffer_.clear();
  Result<std::string> more = ReadRaw(kReadBytes);
  buffer_ = std::move(before);
  if (!more.ok()) return more.status();
  if (more->empty()) return Unavailable("the server closed the connection");
  buffer_ += *more;
  return {};
}

Result<std::string> HttpClient::ReadLine() {
  size_t end = 0;
  while ((end = buffer_.find('\n')) == std::string::npos) {
    if (buffer_.size() > kMaxLine) return Internal("the server sent a line that is too long");
    TANDEM_RETURN_IF_ERROR(Fill());
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

Status HttpClient::WriteRequest(std::string_view method, std::string_view path,
                                std::string_view body, const HttpHeaders& headers) {
  const bool is_ipv6 = host_.find(':') != std::string::npos;
  std::string request = fmt::format("{} {} HTTP/1.1\r\nHost: {}:{}\r\n", method, path,
                                    is_ipv6 ? "[" + host_ + "]" : host_, port_);
  for (const auto& [name, value] : headers) request += fmt::format("{}: {}\r\n", name, value);
  if (method != "GET") {
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  }
  request += "\r\n";
  request += body;
  return WriteRaw(request);
}

Result<ClientResponse> HttpClient::ReadHead() {
  ClientResponse response;
  do {
    response.headers.clear();
    TANDEM_ASSIGN_OR_RETURN(const std::string status_line, ReadLine());
    if (status_line.size() < 12 || !status_line.starts_with("HTTP/1.") ||
        !ParseNumber(std::string_view(status_line).substr(9, 3), response.status)) {
      return Internal("the server does not speak HTTP/1.1");
    }
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const std::string line, ReadLine());
      if (line.empty()) break;
      const size_t colon = line.find(':');
      if (colon == std::string::npos) return Internal("the server sent a broken header");
      response.headers.emplace_back(LowerCase(line.substr(0, colon)),
                                    std::string(Trim(std::string_view(line).substr(colon + 1))));
    }
  } while (response.status == 100);
  reused_ = true;
  chunked_ = LowerCase(response.Header("transfer-encoding")) == "chunked";
  const std::string_view length = response.Header("content-length");
  until_close_ = !chunked_ && length.empty();
  bytes_left_ = 0;
  if (!length.empty() && !ParseNumber(length, bytes_left_)) {
    return Internal("the server sent a broken Content-Length");
  }
  return response;
}

Result<bool> HttpClient::ReadChunk(std::string& out) {
  TANDEM_ASSIGN_OR_RETURN(const std::string line, ReadLine());
  size_t size = 0;
  if (!ParseNumber(std::string_view(line).substr(0, line.find(';')), size, 16)) {
    return Internal("the server sent a broken chunk");
  }
  while (buffer_.size() < size + 2) TANDEM_RETURN_IF_ERROR(Fill());
  out.append(buffer_, 0, size);
  buffer_.erase(0, size + 2);
  return size > 0;
}

Result<bool> HttpClient::ReadPiece(std::string& out) {
  if (chunked_) return ReadChunk(out);
  if (!until_close_ && bytes_left_ == 0) return false;
  TANDEM_ASSIGN_OR_RETURN(const std::string piece,
                          ReadRaw(until_close_ ? kReadBytes : std::min(kReadBytes, bytes_left_)));
  if (until_close_) {
    out += piece;
    return !piece.empty();
  }
  if (piece.empty()) return Unavailable("the server closed the connection");
  out += piece;
  bytes_left_ -= piece.size();
  return true;
}

Status HttpClient::ReadBody(ClientResponse& response) {
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, ReadPiece(response.body));
    if (!more) return {};
  }
}

Result<ClientResponse> HttpClient::ReadResponse(std::string_view method) {
  TANDEM_ASSIGN_OR_RETURN(ClientResponse response, ReadHead());
  // The header of an answer to HEAD speaks of a body that does not come.
  if (method != "HEAD") TANDEM_RETURN_IF_ERROR(ReadBody(response));
  if (until_close_ || LowerCase(response.Header("connection")) == "close") Close();
  return response;
}

Result<ClientResponse> HttpClient::Send(std::string_view method, std::string_view path,
                                        std::string_view body, const HttpHeaders& headers) {
  const bool may_be_stale = reused_ && fd_ >= 0;
  TANDEM_RETURN_IF_ERROR(Connect());
  Status written = WriteRequest(method, path, body, headers);
  Result<ClientResponse> response =
      written.ok() ? ReadResponse(method) : Result<ClientResponse>(written);
  if (response.ok()) return response;
  Close();
  // The server may close an idle connection just when we write to it: retry once on a new one.
  if (may_be_stale && response.status().code() == Code::kUnavailable) {
    return Send(method, path, body, headers);
  }
  return response;
}

Result<ClientResponse> HttpClient::Get(std::string_view path, const HttpHeaders& headers) {
  return Send("GET", path, "", headers);
}

Result<ClientResponse> HttpClient::Post(std::string_view path, std::string_view body,
                                        const HttpHeaders& headers) {
  return Send("POST", path, body, headers);
}

Result<ClientResponse> HttpClient::OpenStream(std::string_view path, std::string_view body,
                                              const HttpHeaders& headers) {
  if (!stream_ended_) Close();  // discards the rest of the previous stream
  TANDEM_RETURN_IF_ERROR(Connect());
  TANDEM_RETURN_IF_ERROR(WriteRequest("POST", path, body, headers));
  TANDEM_ASSIGN_OR_RETURN(ClientResponse response, ReadHead());
  if (response.status == 200 && response.Header("content-type").starts_with("text/event-stream")) {
    stream_ended_ = false;
    stream_.clear();
    return response;
  }
  TANDEM_RETURN_IF_ERROR(ReadBody(response));
  if (until_close_ || LowerCase(response.Header("connection")) == "close") Close();
  return response;
}

Result<std::optional<std::string>> HttpClient::NextEvent() {
  for (;;) {
    // An event ends at an empty line; only its data line matters here.
    for (size_t end = 0; (end = stream_.find("\n\n")) != std::string::npos;) {
      const std::string event = stream_.substr(0, end);
      stream_.erase(0, end + 2);
      if (event.starts_with("data: ")) return std::optional(event.substr(6));
    }
    if (stream_ended_) return std::optional<std::string>();
    Result<bool> more = ReadPiece(stream_);
    if (!more.ok()) {
      Close();
      return more.status();
    }
    stream_ended_ = !*more;
  }
}

}  // namespace tandem::serve
