// Stream: the bytes of one connection, plain or over TLS, read and written as Asio's own streams
// are. Owned by its connection and used on its thread; one read and one write may run at a time.
//
// A read over TLS that socket().cancel() ends loses no byte, as of a plain socket: what the socket
// gave is in OpenSSL's buffers.
#pragma once

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "serve/http/tls.h"

namespace tandem::serve {

class Stream {
  static auto Into(boost::system::error_code& ec) {
    return boost::asio::redirect_error(boost::asio::use_awaitable, ec);
  }

 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type =
      Socket::executor_type;  // NOLINT(readability-identifier-naming): Asio's name

  // Plain where `tls` is null.
  Stream(Socket socket, std::shared_ptr<const TlsContext> tls)
      : socket_(std::move(socket)), context_(std::move(tls)) {
    if (context_ != nullptr) tls_.emplace(socket_, context_->asio());
  }

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  bool is_tls() const { return tls_.has_value(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return is_tls() ? tls_->async_read_some(buffers, std::forward<Token>(token))
                    : socket_.async_read_some(buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return is_tls() ? tls_->async_write_some(buffers, std::forward<Token>(token))
                    : socket_.async_write_some(buffers, std::forward<Token>(token));
  }

  // Only with TLS, before anything is read or written. True in `is_plain` where the client spoke
  // HTTP instead: the stream is plain from then on, and what the client has sent is lost.
  boost::asio::awaitable<boost::system::error_code> Handshake(bool& is_plain) {
    boost::system::error_code ec;
    co_await tls_->async_handshake(boost::asio::ssl::stream_base::server, Into(ec));
    is_plain = ec.category() == boost::asio::error::get_ssl_category() &&
               ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST;
    if (is_plain) tls_.reset();
    co_return ec;
  }

  // Tells the client that nothing follows. Over TLS this waits for the client's own farewell.
  boost::asio::awaitable<void> EndWriting() {
    boost::system::error_code ignored;
    if (is_tls()) co_await tls_->async_shutdown(Into(ignored));
    socket_.shutdown(Socket::shutdown_send, ignored);
  }

 private:
  Socket socket_;
  const std::shared_ptr<const TlsContext> context_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace tandem::serve
