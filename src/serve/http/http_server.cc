#include "serve/http/http_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/log.h"
#include "serve/http/listen.h"
#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using RequestParser = http::request_parser<http::string_body>;

constexpr size_t kReadAhead = 4 << 10;      // of the next request, while this one is answered
constexpr size_t kMaxReadAhead = 64 << 10;  // then reading stops until the response is out
constexpr size_t kLingerBytes = 128u
                                << 20;  // read and dropped behind a refusal, so that it arrives
constexpr Nanos kLingerTime = std::chrono::seconds(2);

class Session;

// What the connections of one server share.
struct Shared {
  HttpHandler& handler;
  const HttpLimits limits;
  std::atomic<int> active_requests{0};
  std::atomic<int> connections{0};
};

// One event loop, its thread and the connections on it (touched by that thread alone).
struct Loop {
  std::unordered_set<Session*> sessions;  // outlives the context, whose end may end sessions
  bool stopping = false;
  asio::io_context context{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work{
      asio::make_work_guard(context)};
  std::thread thread;
};

// Lets any thread nudge a session, for as long as that session lives.
class WakeHandle {
 public:
  explicit WakeHandle(Session* session) : session_(session) {}
  void Wake();
  void Detach() {
    const std::lock_guard lock(mutex_);
    session_ = nullptr;
  }
  void Taken() {
    const std::lock_guard lock(mutex_);
    posted_ = false;
  }

 private:
  std::mutex mutex_;
  Session* session_;     // guarded by mutex_; null once it is gone
  bool posted_ = false;  // guarded by mutex_; a wake-up is on its way
};

// One connection: reads a request, polls its reply, writes it, and again. Lives on one loop's
// thread.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Loop& loop, Shared& shared)
      : socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        wake_timer_(socket_.get_executor()),
        wake_(std::make_shared<WakeHandle>(this)),
        loop_(loop),
        shared_(shared) {
    ++shared_.connections;
    loop_.sessions.insert(this);
  }

  ~Session() {
    wake_->Detach();
    loop_.sessions.erase(this);
    --shared_.connections;
  }

  static awaitable<void> Run(std::shared_ptr<Session> self) {
    co_await self->Serve();
    self->Abort();
  }

  void Abort() {
    gone_ = true;
    Disarm();
    error_code ignored;
    socket_.close(ignored);
    wake_timer_.cancel();
  }

  void PostSignal() {  // any thread
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (const std::shared_ptr<Session> self = weak.lock()) {
        self->wake_->Taken();
        self->signalled_ = true;
        self->wake_timer_.cancel();
      }
    });
  }

 private:
  // What is wrong with a request, for a response that ends the connection.
  struct Refusal {
    int status = 0;  // 0: close without a word
    std::string message;
    std::string path;
  };

  awaitable<void> Serve() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::send_buffer_size(shared_.limits.send_buffer_bytes),
                       ignored);
    while (!gone_ && !loop_.stopping) {
      HttpRequest request;
      Refusal refusal;
      const bool is_good = co_await Read(request, refusal);
      if (!is_good) {
        if (refusal.status != 0) co_await Refuse(refusal);
        co_return;
      }
      const bool go_on = co_await Answer(std::move(request));
      if (!go_on) co_return;
    }
  }

  // A timer around one operation: when it fires the operation ends with operation_aborted.
  void Arm(Nanos timeout) {
    timed_out_ = false;
    deadline_.expires_after(timeout);
    deadline_.async_wait([weak = weak_from_this(), epoch = ++deadline_epoch_](error_code ec) {
      const std::shared_ptr<Session> self = weak.lock();
      if (ec || self == nullptr || epoch != self->deadline_epoch_) return;
      self->timed_out_ = true;
      self->socket_.cancel(ec);
    });
  }
  void Disarm() {
    ++deadline_epoch_;
    deadline_.cancel();
  }

  awaitable<bool> Read(HttpRequest& request, Refusal& refusal) {
    error_code ec;
    if (buffer_.size() == 0) {
      Arm(shared_.limits.idle_timeout);
      co_await socket_.async_wait(tcp::socket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, ec));
      if (ec || gone_) co_return false;
    }
    RequestParser parser;
    parser.header_limit(static_cast<uint32_t>(shared_.limits.header_bytes));
    parser.body_limit(boost::none);  // known once the path is
    Arm(shared_.limits.header_timeout);
    co_await http::async_read_header(socket_, buffer_, parser,
                                     asio::redirect_error(asio::use_awaitable, ec));
    if (ec) {
      refusal = RefusalOf(ec, "header");
      co_return false;
    }
    if (!CheckHeader(parser, refusal)) co_return false;
    const bool has_body = co_await ReadBody(parser, refusal);
    if (!has_body) co_return false;
    Disarm();
    TakeRequest(parser, request);
    co_return true;
  }

  awaitable<bool> ReadBody(RequestParser& parser, Refusal& refusal) {
    error_code ec;
    Arm(shared_.limits.body_timeout);
    if (!parser.is_done() && LowerCase(Field(parser, http::field::expect)) == "100-continue") {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      co_await asio::async_write(socket_, asio::buffer(kContinue),
                                 asio::redirect_error(asio::use_awaitable, ec));
      if (ec) co_return false;
    }
    size_t chunks = 0;
    auto count_chunk = [&chunks, most = shared_.limits.body_chunks](uint64_t, beast::string_view,
                                                                    error_code& chunk_ec) {
      if (++chunks > most) chunk_ec = http::error::body_limit;
    };
    parser.on_chunk_header(count_chunk);
    co_await http::async_read(socket_, buffer_, parser,
                              asio::redirect_error(asio::use_awaitable, ec));
    if (!ec) co_return true;
    const std::string path = refusal.path;
    refusal = RefusalOf(ec, "body");
    refusal.path = path;
    co_return false;
  }

  static std::string_view Field(RequestParser& parser, http::field field) {
    const beast::string_view value = parser.get()[field];
    return {value.data(), value.size()};
  }

  // What can be refused before the body is read; sets the body's limit.
  bool CheckHeader(RequestParser& parser, Refusal& refusal) {
    const auto& header = parser.get();
    const std::string_view target(header.target().data(), header.target().size());
    refusal.path = PathOfTarget(target);
    const auto count = static_cast<size_t>(std::distance(header.begin(), header.end()));
    if (target.size() > shared_.limits.uri_bytes) {
      return Set(refusal, 414,
                 fmt::format("the URI is longer than {} bytes", shared_.limits.uri_bytes));
    }
    if (count > shared_.limits.headers) {
      return Set(refusal, 431, fmt::format("more than {} header fields", shared_.limits.headers));
    }
    if (refusal.path.empty()) return Set(refusal, 400, "the request target is not a path");
    const std::string encoding = LowerCase(Field(parser, http::field::content_encoding));
    if (!encoding.empty() && encoding != "identity") {
      return Set(refusal, 415, "content-encoding must be identity");
    }
    const size_t limit = shared_.handler.BodyLimit(refusal.path);
    if (parser.content_length() && *parser.content_length() > limit) {
      return Set(refusal, 413, fmt::format("the body is larger than {} bytes", limit));
    }
    parser.body_limit(limit);
    return true;
  }

  static bool Set(Refusal& refusal, int status, std::string message) {
    refusal.status = status;
    refusal.message = std::move(message);
    return false;
  }

  Refusal RefusalOf(const error_code& ec, std::string_view part) {
    Refusal refusal;
    if (gone_) return refusal;
    if (ec == asio::error::operation_aborted) {
      if (timed_out_) Set(refusal, 408, fmt::format("the request's {} took too long", part));
    } else if (ec == http::error::header_limit) {
      // Without a line end in it, what filled the buffer is the request line.
      const auto* begin = static_cast<const char*>(buffer_.data().data());
      const bool in_target =
          std::find(begin, begin + buffer_.size(), '\n') == begin + buffer_.size();
      Set(refusal, in_target ? 414 : 431,
          in_target ? "the URI is too long" : "the header is too large");
    } else if (ec == http::error::body_limit) {
      Set(refusal, 413, "the body is larger, or in more pieces, than is allowed");
    } else if (ec.category() == http::make_error_code(http::error::bad_method).category() &&
               ec != http::error::end_of_stream && ec != http::error::partial_message) {
      Set(refusal, 400, fmt::format("not a valid HTTP request: {}", ec.message()));
    }
    return refusal;
  }

  void TakeRequest(RequestParser& parser, HttpRequest& request) {
    auto& message = parser.get();
    keep_alive_ = message.keep_alive();
    is_http_1_0_ = message.version() < 11;
    request.method = std::string(message.method_string().data(), message.method_string().size());
    is_head_ = request.method == "HEAD";  // a GET whose body stays here
    if (is_head_) request.method = "GET";
    request.path = PathOfTarget({message.target().data(), message.target().size()});
    for (const auto& field : message) {
      request.headers.emplace_back(
          LowerCase({field.name_string().data(), field.name_string().size()}),
          std::string(field.value().data(), field.value().size()));
    }
    request.body = std::move(message.body());
    const std::string_view id = request.Header("x-request-id");
    request_id_ = IsGoodRequestId(id) ? std::string(id) : NewRequestId();
    request.id = request_id_;
  }

  // True when the connection can take another request.
  awaitable<bool> Answer(HttpRequest request) {
    struct Active {
      explicit Active(std::atomic<int>& c) : count(c) { ++count; }
      ~Active() { --count; }
      std::atomic<int>& count;
    };
    const Active active(shared_.active_requests);
    std::unique_ptr<Reply> reply =
        shared_.handler.Handle(std::move(request), [handle = wake_] { handle->Wake(); });
    const bool written = co_await WriteReply(*reply);
    reply.reset();  // a client that is gone cancels what still runs
    co_await StopWatching();
    co_return written&& keep_alive_ && !gone_;
  }

  awaitable<bool> WriteReply(Reply& reply) {
    HttpHead head;
    std::string out;
    bool is_first = true;
    for (;;) {
      out.clear();
      signalled_ = false;
      const Reply::Progress progress = reply.Poll(head, out);
      if (progress == Reply::Progress::kPending) {
        if (!watching_ && !gone_) Watch();
        co_await WaitForSignal();
        if (gone_) co_return false;
        continue;
      }
      const bool is_last = progress == Reply::Progress::kLast;
      if (is_first && (head.close || shared_.handler.draining() || loop_.stopping))
        keep_alive_ = false;
      const bool written = co_await WritePart(head, out, is_first, is_last);
      if (!written) co_return false;
      if (is_last) co_return true;
      is_first = false;
    }
  }

  awaitable<bool> WritePart(const HttpHead& head, const std::string& body, bool is_first,
                            bool is_last) {
    const bool is_whole = is_first && is_last;
    const bool chunked = !is_whole && !is_http_1_0_;
    if (!is_whole && is_http_1_0_) keep_alive_ = false;  // the end of the stream ends the body
    std::string before;
    if (is_first) {
      Framing framing{std::nullopt, is_http_1_0_, keep_alive_};
      if (is_whole) framing.length = body.size();
      AppendHead(head, framing, request_id_, before);
    }
    std::string_view after;
    if (chunked) {
      if (!body.empty()) {
        fmt::format_to(std::back_inserter(before), "{:x}\r\n", body.size());
        after = is_last ? "\r\n0\r\n\r\n" : "\r\n";
      } else if (is_last) {
        after = "0\r\n\r\n";
      }
    }
    const std::array<asio::const_buffer, 3> parts = {
        asio::buffer(before), is_head_ ? asio::const_buffer() : asio::buffer(body),
        asio::buffer(after)};
    error_code ec;
    Arm(shared_.limits.write_stall_timeout);
    co_await asio::async_write(socket_, parts, asio::redirect_error(asio::use_awaitable, ec));
    Disarm();
    if (timed_out_) {
      LogDebug("request {}: the client does not read; connection closed", request_id_);
    }
    co_return !ec && !gone_;
  }

  // Answers a request that could not be read, and reads on for a while, since closing over unread
  // bytes would reset the connection and take the answer with it.
  awaitable<void> Refuse(const Refusal& refusal) {
    keep_alive_ = false;
    is_head_ = false;
    request_id_.clear();
    HttpHead head;
    head.status = refusal.status;
    const std::string body =
        shared_.handler.ErrorBody(refusal.path, refusal.status, refusal.message);
    const bool written = co_await WritePart(head, body, true, true);
    if (!written) co_return;
    error_code ec;
    socket_.shutdown(tcp::socket::shutdown_send, ec);
    buffer_.clear();
    Arm(kLingerTime);
    for (size_t read = 0; !ec && read < kLingerBytes;) {
      read += co_await socket_.async_read_some(buffer_.prepare(kMaxReadAhead),
                                               asio::redirect_error(asio::use_awaitable, ec));
    }
    Disarm();
  }

  awaitable<void> WaitForSignal() {
    while (!signalled_ && !gone_) {
      error_code ec;
      wake_timer_.expires_at(asio::steady_timer::time_point::max());
      co_await wake_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
  }

  // Reads ahead while a reply is in the making: the only way to hear that the client has gone.
  void Watch() {
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(kReadAhead),
                            [self = shared_from_this()](error_code ec, size_t bytes) {
                              self->buffer_.commit(bytes);
                              self->OnWatched(ec);
                            });
  }

  void OnWatched(error_code ec) {
    watching_ = false;
    if (!ec && !stop_watching_ && buffer_.size() < kMaxReadAhead) return Watch();
    if (ec && ec != asio::error::operation_aborted) {
      gone_ = true;
      socket_.cancel(ec);  // a write that waits for this client
    }
    wake_timer_.cancel();
  }

  awaitable<void> StopWatching() {
    if (!watching_) co_return;
    stop_watching_ = true;
    error_code ec;
    socket_.cancel(ec);
    while (watching_) {
      wake_timer_.expires_at(asio::steady_timer::time_point::max());
      co_await wake_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
    stop_watching_ = false;
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  asio::steady_timer wake_timer_;
  beast::flat_buffer buffer_;
  const std::shared_ptr<WakeHandle> wake_;
  Loop& loop_;
  Shared& shared_;
  uint64_t deadline_epoch_ = 0;
  bool timed_out_ = false;  // by the deadline last armed
  bool gone_ = false;       // the client is, or the server stops
  bool signalled_ = false;  // the reply may have news
  bool watching_ = false;
  bool stop_watching_ = false;
  bool keep_alive_ = true;
  bool is_http_1_0_ = false;
  bool is_head_ = false;
  std::string request_id_;
};

void WakeHandle::Wake() {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr || posted_) return;
  posted_ = true;
  session_->PostSignal();
}

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpServerOptions& options, HttpHandler& handler) : shared{handler, options.limits} {
    for (int i = 0; i < std::max(options.threads, 1); ++i)
      loops.push_back(std::make_unique<Loop>());
    acceptor.emplace(loops[0]->context);
    retry_timer.emplace(loops[0]->context);
  }

  void Start() {
    asio::co_spawn(loops[0]->context, Accept(), asio::detached);
    for (const std::unique_ptr<Loop>& loop : loops) {
      loop->thread = std::thread([&context = loop->context] { context.run(); });
    }
  }

  awaitable<void> Accept() {
    for (size_t next = 0; acceptor->is_open(); next = (next + 1) % loops.size()) {
      Loop& loop = *loops[next];
      error_code ec;
      tcp::socket socket = co_await acceptor->async_accept(
          loop.context, asio::redirect_error(asio::use_awaitable, ec));
      if (ec == asio::error::operation_aborted) co_return;
      if (ec) {
        // Out of descriptors, most likely: some will be given back.
        LogWarning("cannot accept a connection: {}", ec.message());
        retry_timer->expires_after(std::chrono::milliseconds(100));
        co_await retry_timer->async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      if (shared.connections >= shared.limits.connections) {
        TurnAway(socket);
        continue;
      }
      asio::post(loop.context,
                 [this, &loop, moved = std::make_shared<tcp::socket>(std::move(socket))] {
                   if (loop.stopping) return;
                   auto session = std::make_shared<Session>(std::move(*moved), loop, shared);
                   asio::co_spawn(loop.context, Session::Run(std::move(session)), asio::detached);
                 });
    }
  }

  void TurnAway(tcp::socket& socket) const {
    const std::string body = shared.handler.ErrorBody("", 503, "too many connections");
    const std::string response = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
        "{}\r\n"
        "Retry-After: 1\r\nConnection: close\r\n\r\n{}",
        body.size(), body);
    error_code ignored;
    socket.non_blocking(true, ignored);
    socket.write_some(asio::buffer(response), ignored);
  }

  void Stop() {
    if (stopped) return;
    stopped = true;
    asio::post(loops[0]->context, [this] {
      error_code ignored;
      acceptor->close(ignored);
      retry_timer->cancel();
    });
    for (const std::unique_ptr<Loop>& loop : loops) {
      asio::post(loop->context, [&loop = *loop] {
        loop.stopping = true;
        for (Session* session : loop.sessions) session->Abort();
        loop.work.reset();
      });
    }
    for (const std::unique_ptr<Loop>& loop : loops) loop->thread.join();
  }

  Shared shared;
  std::vector<std::unique_ptr<Loop>> loops;
  std::optional<tcp::acceptor> acceptor;
  std::optional<asio::steady_timer> retry_timer;
  uint16_t port = 0;
  bool stopped = false;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() { Stop(); }

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                      HttpHandler& handler) {
  TANDEM_ASSIGN_OR_RETURN(const ListeningSocket socket, Listen(options.host, options.port));
  auto impl = std::make_unique<Impl>(options, handler);
  impl->acceptor->assign(socket.is_ipv6 ? tcp::v6() : tcp::v4(), socket.fd);
  impl->port = socket.port;
  impl->Start();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

uint16_t HttpServer::port() const { return impl_->port; }
int HttpServer::active_requests() const { return impl_->shared.active_requests; }
int HttpServer::open_connections() const { return impl_->shared.connections; }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace tandem::serve
