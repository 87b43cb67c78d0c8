#include "serve/http/http_server.h"

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/http/connection.h"
#include "serve/http/event_loop.h"
#include "serve/http/listen.h"

namespace tandem::serve {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kMostTurnedAway = 64;  // answered with 503 at a time; others get no answer

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& options, HttpHandler& handler,
       std::shared_ptr<const TlsContext> tls)
      : tls_files(options.tls),
        shared(handler, options.limits, options.request_id_header, std::move(tls)) {
    for (int i = 0; i < std::max(options.threads, 1); ++i) {
      loops.push_back(std::make_unique<EventLoop>());
    }
    acceptor.emplace(loops[0]->context());
    retry_timer.emplace(loops[0]->context());
  }

  void Start(const ListeningSocket& socket) {
    is_ipv6 = socket.is_ipv6;
    port = socket.port;
    acceptor->assign(is_ipv6 ? tcp::v6() : tcp::v4(), socket.fd);
    asio::co_spawn(loops[0]->context(), Accept(), asio::detached);
    for (const std::unique_ptr<EventLoop>& loop : loops) loop->Start();
  }

  awaitable<void> Accept() {
    for (size_t next = 0; acceptor->is_open(); next = (next + 1) % loops.size()) {
      error_code ec;
      tcp::socket socket = co_await acceptor->async_accept(
          loops[next]->context(), asio::redirect_error(asio::use_awaitable, ec));
      if (ec == asio::error::operation_aborted) co_return;
      if (ec) {
        // Most likely the process is out of descriptors: some will become free.
        LogWarning("cannot accept a connection: {}", ec.message());
        retry_timer->expires_after(std::chrono::milliseconds(100));
        co_await retry_timer->async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      Welcome(socket, *loops[next]);
    }
  }

  void Welcome(tcp::socket& socket, EventLoop& loop) {
    const int too_many = shared.connections - shared.limits.connections + 1;
    if (too_many > kMostTurnedAway) return;
    std::unique_ptr<Reply> farewell;
    if (too_many > 0) farewell = shared.handler.Error("", 503, "too many connections");
    error_code ec;
    const int fd = socket.release(ec);
    if (!ec) StartConnection(fd, is_ipv6, loop, shared, std::move(farewell));
  }

  void Stop() {
    if (stopped) return;
    stopped = true;
    asio::post(loops[0]->context(), [this] {
      error_code ignored;
      acceptor->close(ignored);
      retry_timer->cancel();
    });
    for (const std::unique_ptr<EventLoop>& loop : loops) loop->Stop();
    for (const std::unique_ptr<EventLoop>& loop : loops) loop->Join();
  }

  const TlsFiles tls_files;
  ConnectionShared shared;
  std::vector<std::unique_ptr<EventLoop>> loops;
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> retry_timer;
  bool is_ipv6 = false;
  uint16_t port = 0;
  bool stopped = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      HttpHandler& handler) {
  std::shared_ptr<const TlsContext> tls;
  if (options.tls.is_set()) {
    TANDEM_ASSIGN_OR_RETURN(tls, TlsContext::Load(options.tls));
  }
  TANDEM_ASSIGN_OR_RETURN(const ListeningSocket socket, Listen(options.host, options.port));
  auto impl = std::make_unique<Impl>(options, handler, std::move(tls));
  impl->Start(socket);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port; }
int HttpServer::active_requests() const { return impl_->shared.active_requests; }
int HttpServer::open_connections() const { return impl_->shared.connections; }
void HttpServer::Stop() { impl_->Stop(); }

Status HttpServer::ReloadTls() {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const TlsContext> tls,
                          TlsContext::Load(impl_->tls_files));
  impl_->shared.SetTls(std::move(tls));
  return {};
}

}  // namespace tandem::serve
