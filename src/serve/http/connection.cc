#include "serve/http/connection.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "serve/http/request_parser.h"
#include "serve/http/tls.h"
#include "serve/http/wake_handle.h"
#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kReadAhead = 4 << 10;      // of the next request, while this one is answered
constexpr size_t kMaxReadAhead = 64 << 10;  // then reading stops until the response is out
constexpr size_t kLingerBytes = 128u << 20;
constexpr size_t kNoteBytes = 512;  // of a reply's note in the log

using Parts = std::array<asio::const_buffer, 3>;  // of one write

// Stream: the bytes of one connection, plain or over TLS, read and written as Asio's own streams
// are. Owned by its connection and used on its thread; one read and one write may run at a time.
//
// A read over TLS that socket().cancel() ends loses no byte, as of a plain socket: what the socket
// gave is in OpenSSL's buffers.
class Stream {
  static auto Into(error_code& ec) { return asio::redirect_error(asio::use_awaitable, ec); }

 public:
  using Socket = tcp::socket;
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
  awaitable<error_code> Handshake(bool& is_plain) {
    error_code ec;
    co_await tls_->async_handshake(asio::ssl::stream_base::server, Into(ec));
    is_plain = ec.category() == asio::error::get_ssl_category() &&
               ERR_GET_REASON(static_cast<unsigned long>(ec.value())) == SSL_R_HTTP_REQUEST;
    if (is_plain) tls_.reset();
    co_return ec;
  }

  // Tells the client that nothing follows. Over TLS this waits for the client's own farewell.
  awaitable<void> EndWriting() {
    error_code ignored;
    if (is_tls()) co_await tls_->async_shutdown(Into(ignored));
    socket_.shutdown(Socket::shutdown_send, ignored);
  }

 private:
  Socket socket_;
  const std::shared_ptr<const TlsContext> context_;
  std::optional<asio::ssl::stream<Socket&>> tls_;
};

class Connection final : public EventLoop::Guest, public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, EventLoop& loop, ConnectionShared& shared)
      : count_(shared.connections),
        stream_(std::move(socket), shared.Tls()),
        socket_(stream_.socket()),
        deadline_(socket_.get_executor()),
        wake_timer_(socket_.get_executor()),
        wake_(std::make_shared<WakeHandle>([this] { PostSignal(); })),
        loop_(loop),
        shared_(shared) {}

  ~Connection() override {
    wake_->Detach();
    loop_.Remove(*this);
  }

  static awaitable<void> Run(std::shared_ptr<Connection> self, std::unique_ptr<Reply> farewell) {
    self->loop_.Add(*self);
    if (!self->loop_.stopping()) {
      self->SetSocketOptions();
      bool has_client = true;
      if (self->stream_.is_tls()) has_client = co_await self->Handshake(farewell);
      if (has_client && farewell == nullptr) {
        co_await self->Serve();
      } else if (has_client) {
        co_await self->TurnAway(*farewell);
      }
    }
    self->Abort();
  }

  void Abort() override {
    gone_ = true;
    Disarm();
    error_code ignored;
    socket_.close(ignored);
    wake_timer_.cancel();
  }

 private:
  void SetSocketOptions() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::send_buffer_size(shared_.limits.send_buffer_bytes),
                       ignored);
  }

  // False if there is nobody to serve. A client that speaks HTTP gets an answer in it.
  awaitable<bool> Handshake(std::unique_ptr<Reply>& farewell) {
    Arm(shared_.limits.handshake_timeout);
    bool is_plain = false;
    const error_code ec = co_await stream_.Handshake(is_plain);
    Disarm();
    if (is_plain) {
      keep_alive_ = false;
      request_id_ = NewRequestId();
      farewell = shared_.handler.Error("", 400, "this port speaks HTTPS; use an https:// address");
    } else if (ec) {
      LogDebug("TLS handshake: {}", timed_out_ ? "took too long" : ec.message());
    }
    co_return (!ec || is_plain) && !gone_;
  }

  awaitable<void> Serve() {
    do {
      RequestParser parser(shared_.limits);
      std::unique_ptr<Reply> refusal;
      const bool is_good = co_await ReadRequest(parser, refusal);
      if (!is_good && refusal == nullptr) co_return;
      const Count active(shared_.active_requests);
      std::unique_ptr<Reply> reply = is_good ? Handle(parser) : std::move(refusal);
      const bool written = co_await WriteReply(*reply);
      reply.reset();  // when the client is gone, this cancels what still runs
      co_await StopWatching();
      if (!written) co_return;
    } while (keep_alive_ && !gone_);
    co_await Linger();
  }

  awaitable<void> TurnAway(Reply& farewell) {
    const bool written = co_await WriteReply(farewell);
    if (written) co_await Linger();
  }

  // A timer around one operation: when it fires the operation ends with operation_aborted.
  void Arm(Nanos timeout) {
    timed_out_ = false;
    deadline_.expires_after(timeout);
    deadline_.async_wait([weak = weak_from_this(), epoch = ++deadline_epoch_](error_code ec) {
      const std::shared_ptr<Connection> self = weak.lock();
      if (ec || self == nullptr || epoch != self->deadline_epoch_) return;
      self->timed_out_ = true;
      self->socket_.cancel(ec);
    });
  }
  void Disarm() {
    ++deadline_epoch_;
    deadline_.cancel();
  }

  // --- Reading a request ---

  // False if there is no request to handle: `refusal` is then the answer, or null if nobody waits
  // for one.
  awaitable<bool> ReadRequest(RequestParser& parser, std::unique_ptr<Reply>& refusal) {
    if (buffer_.size() == 0) {
      const bool has_bytes = co_await WaitForBytes();
      if (!has_bytes) co_return false;
    }
    const bool has_header = co_await Feed(parser, shared_.limits.header_timeout);
    TakeHeader(parser);
    if (!has_header) {
      refusal = RefusalOf(parser, "header");
      co_return false;
    }
    Admission admission = shared_.handler.Admit(parser.request());
    if (admission.refusal != nullptr) {
      refusal = std::move(admission.refusal);
      if (parser.state() == RequestParser::State::kBody) keep_alive_ = false;  // it is left unread
      co_return false;
    }
    if (parser.state() == RequestParser::State::kDone) co_return true;
    parser.LimitBody(admission.body_limit);
    const bool has_body = co_await ReadBody(parser);
    if (!has_body) refusal = RefusalOf(parser, "body");
    co_return has_body;
  }

  awaitable<bool> WaitForBytes() {
    buffer_.shrink_to_fit();  // idle connections need no buffer
    error_code ec;
    Arm(shared_.limits.idle_timeout);
    if (stream_.is_tls()) {  // its bytes may be in OpenSSL's buffers already
      const size_t bytes = co_await stream_.async_read_some(
          buffer_.prepare(kReadAhead), asio::redirect_error(asio::use_awaitable, ec));
      buffer_.commit(bytes);
    } else {
      co_await socket_.async_wait(tcp::socket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, ec));
    }
    Disarm();
    co_return !ec && !gone_;
  }

  awaitable<bool> ReadBody(RequestParser& parser) {
    if (parser.state() == RequestParser::State::kRefused) co_return false;
    if (parser.expects_continue() && buffer_.size() == 0) {
      const bool written = co_await WriteContinue();
      if (!written) co_return false;
    }
    co_return co_await Feed(parser, shared_.limits.body_timeout);
  }

  // Reads until the parser changes its state. False if the request is refused, the time is up or
  // the client is gone.
  awaitable<bool> Feed(RequestParser& parser, Nanos timeout) {
    const RequestParser::State before = parser.state();
    BodyShare share(shared_.body_bytes);
    error_code ec;
    Arm(timeout);
    for (;;) {
      buffer_.consume(
          parser.Put({static_cast<const char*>(buffer_.data().data()), buffer_.data().size()}));
      if (share.Set(parser.request().body.size()) > shared_.limits.all_body_bytes) {
        parser.Refuse(503, "the server is reading too many bodies");
      }
      if (parser.state() != before || ec || gone_) break;
      const size_t bytes = co_await stream_.async_read_some(
          buffer_.prepare(kReadBytes), asio::redirect_error(asio::use_awaitable, ec));
      buffer_.commit(bytes);
    }
    Disarm();
    const bool is_read =
        parser.state() != before && parser.state() != RequestParser::State::kRefused;
    co_return is_read;
  }

  // The request's properties that the response needs, from a header that may be incomplete.
  void TakeHeader(const RequestParser& parser) {
    keep_alive_ = parser.keep_alive();
    is_http_1_0_ = parser.is_http_1_0();
    is_head_ = parser.is_head();
    method_ = parser.request().method;
    path_ = parser.request().path;
    header_read_ = std::chrono::steady_clock::now();
    std::string_view id = parser.request().Header("x-request-id");
    if (const std::string& other = shared_.request_id_header;
        !other.empty() && !IsGoodRequestId(id)) {
      id = parser.request().Header(other);
    }
    request_id_ = IsGoodRequestId(id) ? std::string(id) : NewRequestId();
  }

  std::unique_ptr<Reply> RefusalOf(const RequestParser& parser, std::string_view part) {
    keep_alive_ = false;
    if (gone_) return nullptr;
    if (parser.state() == RequestParser::State::kRefused) {
      return shared_.handler.Error(path_, parser.error().status, parser.error().message);
    }
    if (!timed_out_) return nullptr;
    return shared_.handler.Error(path_, 408, fmt::format("the request's {} took too long", part));
  }

  std::unique_ptr<Reply> Handle(RequestParser& parser) {
    HttpRequest request = parser.TakeRequest();
    request.id = request_id_;
    return shared_.handler.Handle(std::move(request), [handle = wake_] { handle->Wake(); });
  }

  // --- Writing its answer ---

  awaitable<bool> WriteReply(Reply& reply) {
    HttpHead head;
    const bool written = co_await WriteParts(reply, head);
    LogEnd(head, written);
    co_return written;
  }

  // Every request that got a reply ends here, refused ones too.
  void LogEnd(const HttpHead& head, bool written) const {
    if (!LogEnabled(LogLevel::kDebug)) return;
    const auto took = std::chrono::steady_clock::now() - header_read_;
    LogDebug("request {}: {} {}, {} in {:.1f} ms{}{}", request_id_, method_, path_,
             written       ? fmt::format("status {}", head.status)
             : is_cut_off_ ? "cut off"
                           : "the client left",
             std::chrono::duration<double, std::milli>(took).count(),
             head.log_note.empty() ? "" : ", ",
             std::string_view(head.log_note).substr(0, kNoteBytes));
  }

  awaitable<bool> WriteParts(Reply& reply, HttpHead& head) {
    std::string out;
    for (bool is_first = true;;) {
      out.clear();
      signalled_ = false;
      const Reply::Progress progress = reply.Poll(head, out);
      if (progress == Reply::Progress::kPending) {
        if (is_first) co_await Probe();
        if (gone_) co_return false;
        if (!watching_ && !gone_) Watch();
        const bool has_news =
            co_await WaitForNews(reply.patience().value_or(shared_.limits.keep_alive_interval));
        if (gone_) co_return false;
        if (has_news || !reply.KeepAlive(head, out)) continue;
      }
      const bool is_last = progress == Reply::Progress::kLast;
      if (is_first && (head.close || shared_.handler.draining() || loop_.stopping())) {
        keep_alive_ = false;
      }
      const bool written = co_await WritePart(head, out, is_first, is_last);
      if (!written) co_return false;
      if (is_last || is_head_) co_return true;
      if (progress == Reply::Progress::kBroken) {
        CutOff();
        co_return false;
      }
      is_first = false;
    }
  }

  // The connection is closed next: a chunked body is seen to lack its end. In HTTP/1.0 the end of
  // the connection is the body's, so it is reset.
  void CutOff() {
    is_cut_off_ = true;
    error_code ignored;
    if (is_http_1_0_) socket_.set_option(tcp::socket::linger(true, 0), ignored);
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
    if (chunked && !is_head_) {
      if (!body.empty()) {
        fmt::format_to(std::back_inserter(before), "{:x}\r\n", body.size());
        after = is_last ? "\r\n0\r\n\r\n" : "\r\n";
      } else if (is_last) {
        after = "0\r\n\r\n";
      }
    }
    const Parts parts = {asio::buffer(before), is_head_ ? asio::const_buffer() : asio::buffer(body),
                         asio::buffer(after)};
    co_return co_await Write(parts);
  }

  awaitable<bool> WriteContinue() {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    const Parts parts = {asio::buffer(kContinue)};
    co_return co_await Write(parts);
  }

  awaitable<bool> Write(Parts parts) {
    error_code ec;
    Arm(shared_.limits.write_stall_timeout);
    co_await asio::async_write(stream_, parts, asio::redirect_error(asio::use_awaitable, ec));
    Disarm();
    if (timed_out_) {
      LogDebug("request {}: the client does not read; connection closed", request_id_);
    }
    co_return !ec && !gone_;
  }

  // Ends the response's direction and reads on for a while: closing with unread bytes would reset
  // the connection, and the client might lose the response.
  awaitable<void> Linger() {
    buffer_.clear();
    Arm(shared_.limits.linger_timeout);
    co_await stream_.EndWriting();
    // Of the socket: what comes over TLS need not be understood any more.
    error_code ec;
    for (size_t read = 0; !ec && !gone_ && !timed_out_ && read < kLingerBytes;) {
      read += co_await socket_.async_read_some(buffer_.prepare(kReadBytes),
                                               asio::redirect_error(asio::use_awaitable, ec));
    }
    Disarm();
  }

  // --- Waiting for the answer ---

  void PostSignal() {  // any thread
    asio::post(socket_.get_executor(), [weak = weak_from_this()] {
      if (const std::shared_ptr<Connection> self = weak.lock()) {
        self->wake_->Taken();
        self->Signal();
      }
    });
  }

  void Signal() {
    signalled_ = true;
    wake_timer_.cancel();
  }

  // Until there is a signal; false when the interval (0: for ever) has passed without one.
  awaitable<bool> WaitForNews(Nanos interval) {
    using TimePoint = asio::steady_timer::time_point;
    const TimePoint end =
        interval > Nanos(0) ? asio::steady_timer::clock_type::now() + interval : TimePoint::max();
    bool expired = false;
    while (!signalled_ && !gone_ && !expired) expired = co_await WaitForWakeTimer(end);
    co_return signalled_;
  }

  // Until someone cancels the timer; true when `end` has come.
  awaitable<bool> WaitForWakeTimer(
      asio::steady_timer::time_point end = asio::steady_timer::time_point::max()) {
    error_code ec;
    wake_timer_.expires_at(end);
    co_await wake_timer_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    co_return !ec;
  }

  // A client that has sent everything (shutdown) and one that is gone (close) look alike until
  // something is written: then the system of one that is gone resets the connection. Before the
  // response has begun, an interim response can be written; clients skip those. HTTP/1.0 has no
  // interim responses: its client is taken to be gone, and told so in case it is not.
  awaitable<void> Probe() {
    if (!half_closed_ || probed_) co_return;
    probed_ = true;
    if (is_http_1_0_) {
      co_await RefuseHalfClosed();
      gone_ = true;
      co_return;
    }
    const bool written = co_await WriteContinue();
    if (!written) gone_ = true;
  }

  awaitable<void> RefuseHalfClosed() {
    keep_alive_ = false;
    const std::unique_ptr<Reply> refusal = shared_.handler.Error(
        path_, 400,
        "the client ended its sending side before it had its answer, which in HTTP/1.0 means that "
        "it is gone; keep that side open, or use HTTP/1.1");
    co_await WriteReply(*refusal);
  }

  // Watches the client while a reply is in progress: reads ahead, and detects the end of its data
  // and a reset; only a reset once nothing more can be read.
  void Watch() {
    watching_ = true;
    if (half_closed_ || buffer_.size() >= kMaxReadAhead) {
      socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](error_code ec) {
        self->OnWatched(ec ? ec : asio::error::make_error_code(asio::error::connection_reset));
      });
      return;
    }
    stream_.async_read_some(buffer_.prepare(kReadAhead),
                            [self = shared_from_this()](error_code ec, size_t bytes) {
                              self->buffer_.commit(bytes);
                              self->OnWatched(ec);
                            });
  }

  void OnWatched(error_code ec) {
    watching_ = false;
    if (!ec && !stop_watching_) return Watch();
    if (ec == asio::error::eof) {
      half_closed_ = true;
      return Signal();  // to probe, and to watch for a reset
    }
    if (ec && ec != asio::error::operation_aborted) {
      gone_ = true;
      socket_.cancel(ec);  // a write that waits for this client
    }
    wake_timer_.cancel();
  }

  awaitable<void> StopWatching() {
    if (!watching_) co_return;
    stop_watching_ = true;
    error_code ignored;
    socket_.cancel(ignored);
    while (watching_) co_await WaitForWakeTimer();
    stop_watching_ = false;
  }

  const Count count_;
  Stream stream_;
  tcp::socket& socket_;  // below stream_
  asio::steady_timer deadline_;
  asio::steady_timer wake_timer_;
  boost::beast::flat_buffer buffer_;  // read from the socket, not yet taken by a parser
  const std::shared_ptr<WakeHandle> wake_;
  EventLoop& loop_;
  ConnectionShared& shared_;
  uint64_t deadline_epoch_ = 0;
  bool timed_out_ = false;    // by the latest deadline
  bool gone_ = false;         // the client is gone, or the server stops
  bool half_closed_ = false;  // the client sends no more data
  bool probed_ = false;       // a half-closed client has been tested for reading
  bool signalled_ = false;    // the reply may have news
  bool watching_ = false;
  bool stop_watching_ = false;
  bool keep_alive_ = false;
  bool is_http_1_0_ = false;
  bool is_head_ = false;
  bool is_cut_off_ = false;  // the reply broke off
  std::string method_;
  std::string path_;
  std::string request_id_;
  std::chrono::steady_clock::time_point header_read_ = std::chrono::steady_clock::now();
};

}  // namespace

void StartConnection(int fd, bool is_ipv6, EventLoop& loop, ConnectionShared& shared,
                     std::unique_ptr<Reply> farewell) {
  tcp::socket socket(loop.context(), is_ipv6 ? tcp::v6() : tcp::v4(), fd);
  auto connection = std::make_shared<Connection>(std::move(socket), loop, shared);
  asio::co_spawn(loop.context(), Connection::Run(std::move(connection), std::move(farewell)),
                 asio::detached);
}

}  // namespace tandem::serve
