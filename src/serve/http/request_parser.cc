#include "serve/http/request_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cstdint>
#include <optional>
#include <utility>

#include "serve/http/wire.h"

namespace tandem::serve {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;
using BoostView = boost::beast::string_view;

std::string_view View(BoostView text) { return {text.data(), text.size()}; }

}  // namespace

// Beast's parser finds the parts of the message and refuses invalid HTTP. This class limits them
// and refuses messages that Beast lets through.
class RequestParser::Impl final : public http::basic_parser<true> {
 public:
  explicit Impl(const HttpLimits& limits) : limits_(limits) {
    header_limit(static_cast<uint32_t>(limits.header_bytes));
    body_limit(boost::none);  // set once the path is known
  }

  State StateNow() const {
    if (error_.status != 0) return State::kRefused;
    if (is_done()) return State::kDone;
    return is_header_done() ? State::kBody : State::kHeader;
  }

  size_t Parse(std::string_view bytes) {
    const State before = StateNow();
    size_t used = SkipEmptyLines(bytes);
    if (!got_some() && bytes.substr(used) == "\r") return used;  // perhaps another empty line
    error_code ec;
    while (!ec && used < bytes.size() && StateNow() == before) {
      const size_t body_before = request_.body.size();
      const std::string_view rest = bytes.substr(used);
      const size_t step = put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
      used += step;
      (before == State::kHeader ? header_bytes_ : framing_bytes_) +=
          step - (request_.body.size() - body_before);
    }
    if (ec && ec != http::error::need_more) RefuseFor(ec, bytes);
    CheckSizes(before, bytes, bytes.size() - used);
    return used;
  }

  void LimitBody(size_t bytes) {
    if (content_length() && *content_length() > bytes) {
      Refuse(413, fmt::format("the body is larger than {} bytes", bytes));
    }
    body_limit(bytes);
  }

  void Refuse(int status, std::string message) {
    if (error_.status == 0) error_ = {status, std::move(message)};
  }

  const HttpLimits limits_;
  HttpRequest request_;
  Error error_;
  bool is_head_ = false;
  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  bool expects_continue_ = false;

 private:
  // Old clients send an empty line after a body; the next request begins after that line.
  size_t SkipEmptyLines(std::string_view bytes) {
    size_t skipped = 0;
    while (!got_some() && bytes.substr(skipped).starts_with("\r\n")) skipped += 2;
    header_bytes_ += skipped;
    return skipped;
  }

  void RefuseFor(const error_code& ec, std::string_view bytes) {
    if (ec == http::error::header_limit) return RefuseHeader(bytes);
    if (ec == http::error::body_limit) return Refuse(413, "the body is larger than is allowed");
    Refuse(400, fmt::format("not a valid HTTP request: {}", ec.message()));
  }

  void RefuseHeader(std::string_view bytes) {
    // Without a line end, the request line has filled the header.
    const bool in_target = request_.method.empty() && bytes.find('\n') == std::string_view::npos;
    Refuse(in_target ? 414 : 431, in_target ? "the URI is too long" : "the header is too large");
  }

  // `left` bytes at the end of `bytes` are incomplete: part of a header, of a chunk's size and
  // extensions, or of the trailers.
  void CheckSizes(State state, std::string_view bytes, size_t left) {
    if (state == State::kHeader) {
      if (StateNow() != State::kHeader) left = 0;
      if (header_bytes_ + left > limits_.header_bytes) RefuseHeader(bytes);
    } else if (framing_bytes_ > limits_.chunk_framing_bytes) {
      Refuse(413, fmt::format("the chunks' sizes, extensions and trailers take more than {} bytes",
                              limits_.chunk_framing_bytes));
    } else if (StateNow() == State::kBody && left > limits_.header_bytes) {
      Refuse(431, fmt::format("a chunk's extensions, or the trailers, take more than {} bytes",
                              limits_.header_bytes));
    }
  }

  void Fail(int status, std::string message, error_code& ec) {
    Refuse(status, std::move(message));
    ec = http::error::bad_value;  // ends the parsing; error_ is what the client gets
  }

  void on_request_impl(http::verb, BoostView method, BoostView target, int version,
                       error_code& ec) override {
    request_.method = View(method);
    is_head_ = request_.method == "HEAD";
    if (is_head_) request_.method = "GET";
    is_http_1_0_ = version < 11;
    const TargetParts parts = ParseTarget(View(target));
    request_.path = parts.path;
    request_.query = parts.query;
    target_authority_ = parts.authority;
    if (target.size() > limits_.uri_bytes) {
      return Fail(414, fmt::format("the URI is longer than {} bytes", limits_.uri_bytes), ec);
    }
    if (request_.path.empty()) Fail(400, "the request target is not a path", ec);
  }

  void on_field_impl(http::field field, BoostView name, BoostView value, error_code& ec) override {
    if (is_header_done()) return;  // a trailer
    if (request_.headers.size() == limits_.headers) {
      return Fail(431, fmt::format("more than {} header fields", limits_.headers), ec);
    }
    const std::string& text =
        request_.headers.emplace_back(LowerCase(View(name)), std::string(View(value))).second;
    if (field == http::field::host) {
      if (host_) return Fail(400, "more than one Host header", ec);
      host_ = text;
    } else if (field == http::field::transfer_encoding) {
      // With any other coding the end of the body would be ambiguous.
      if (is_http_1_0_ || LowerCase(text) != "chunked") {
        Fail(400, "transfer-encoding: only chunked is accepted, and only in HTTP/1.1", ec);
      }
    } else if (field == http::field::expect) {
      expects_continue_ = !is_http_1_0_ && LowerCase(text) == "100-continue";
    }
  }

  void on_header_impl(error_code& ec) override {
    keep_alive_ = keep_alive();
    if (!host_ && !is_http_1_0_) return Fail(400, "there is no Host header", ec);
    // An absolute target takes precedence over the Host header.
    const std::optional<std::string> host =
        HostOfAuthority(target_authority_.empty() ? host_.value_or("") : target_authority_);
    if (!host) return Fail(400, "the host is not a name or address with an optional port", ec);
    request_.host = *host;
  }

  void on_body_init_impl(const boost::optional<uint64_t>& length, error_code&) override {
    if (length) request_.body.reserve(static_cast<size_t>(*length));
  }

  size_t on_body_impl(BoostView body, error_code&) override {
    request_.body += View(body);
    return body.size();
  }

  size_t on_chunk_body_impl(uint64_t, BoostView body, error_code&) override {
    request_.body += View(body);
    return body.size();
  }

  void on_response_impl(int, BoostView, int, error_code&) override {}
  void on_chunk_header_impl(uint64_t, BoostView, error_code&) override {}
  void on_finish_impl(error_code&) override {}

  std::optional<std::string> host_;  // as the header has it
  std::string target_authority_;     // of an absolute target
  size_t header_bytes_ = 0;
  size_t framing_bytes_ = 0;  // of the body's chunks, without their data
};

RequestParser::RequestParser(const HttpLimits& limits) : impl_(std::make_unique<Impl>(limits)) {}
RequestParser::~RequestParser() = default;

size_t RequestParser::Put(std::string_view bytes) { return impl_->Parse(bytes); }
RequestParser::State RequestParser::state() const { return impl_->StateNow(); }
const RequestParser::Error& RequestParser::error() const { return impl_->error_; }
const HttpRequest& RequestParser::request() const { return impl_->request_; }
bool RequestParser::is_head() const { return impl_->is_head_; }
bool RequestParser::is_http_1_0() const { return impl_->is_http_1_0_; }
bool RequestParser::keep_alive() const { return impl_->keep_alive_; }
bool RequestParser::expects_continue() const { return impl_->expects_continue_; }
void RequestParser::LimitBody(size_t bytes) { impl_->LimitBody(bytes); }
void RequestParser::Refuse(int status, std::string message) {
  impl_->Refuse(status, std::move(message));
}
HttpRequest RequestParser::TakeRequest() { return std::move(impl_->request_); }

}  // namespace tandem::serve
