// HTTP as downloads need it, over libcurl: one request at a time on connections that are kept, with
// redirects that carry no credentials to other hosts. An HttpSession is used by one thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace tandem {

// AWS's signature, version 4, made by libcurl.
struct AwsSignature {
  std::string region;
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // empty: none
};

struct HttpRequest {
  std::string url;
  std::string method = "GET";
  std::vector<std::string> headers = {};                  // "name: value"
  std::vector<std::string> secrets = {};                  // the same; for the host of `url` only
  std::optional<AwsSignature> signature = {};             // likewise
  std::optional<std::pair<int64_t, int64_t>> range = {};  // the first and the last byte
  bool follow_redirects = true;
  bool use_proxy = true;
  std::chrono::seconds connect{10};
  std::chrono::seconds stall{30};  // ends when fewer than a byte a second arrive for so long
  // Looked at about once a second, by the thread that sends: true ends the transfer with CANCELLED.
  std::function<bool()> ended = {};
};

struct HttpResponse {
  int status = 0;
  std::multimap<std::string, std::string> headers;  // the names in small letters
  std::string body;                                 // empty when it went to a sink

  // The first of this name, given in small letters; empty without one.
  std::string_view Header(const std::string& name) const;
  bool ok() const { return status >= 200 && status < 300; }
};

// The host of a URL and its port, if it names one: "localhost:8080".
std::string_view AuthorityOf(std::string_view url);
// As a part of a path (where `keep` holds "/", of several) or of a query.
std::string UrlEncode(std::string_view text, std::string_view keep = "");

class HttpSession {
 public:
  // Called with the pieces of a good response's body. false ends the transfer with CANCELLED.
  using Sink = std::function<bool(const HttpResponse& head, std::span<const std::byte> bytes)>;

  // `certificates`: a file of trusted ones; empty: the system's.
  explicit HttpSession(std::filesystem::path certificates);
  ~HttpSession();
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  // One attempt. The response of any status but a redirect that was followed; the body of a bad one
  // is cut at 64 KiB. UNAVAILABLE: the transfer broke, and another attempt may succeed.
  // FAILED_PRECONDITION: none will (a certificate that is not trusted, say).
  Result<HttpResponse> Send(const HttpRequest& request, const Sink& sink);
  // The body comes in the response; at most 64 MiB of it.
  Result<HttpResponse> Send(const HttpRequest& request);

 private:
  struct Transfer;
  Result<HttpResponse> SendOnce(const HttpRequest& request, const std::string& url,
                                bool with_secrets, const Sink& sink);

  const std::filesystem::path certificates_;
  void* const curl_;
};

// Pauses between attempts: each twice as long as the one before it, up to half a minute, unless the
// server says how long. Used by one thread.
class Backoff {
 public:
  static constexpr int kMaxFailures = 6;
  explicit Backoff(std::chrono::milliseconds first) : first_(first) {}

  // Counts a failure: how long to wait before the next attempt, or nothing when it was the last.
  // `response`: of a server that answered; its Retry-After counts.
  std::optional<std::chrono::milliseconds> Fail(const HttpResponse* response);
  // An attempt got further: the count begins anew.
  void Reset() { failures_ = 0; }

 private:
  const std::chrono::milliseconds first_;
  int failures_ = 0;
};

// Whether another attempt may succeed: 408, 429 and most of 5xx.
bool MayTryAgain(int status);

// Send with further attempts where they may succeed. `check` as in SourceOptions, between them.
Result<HttpResponse> SendPatiently(HttpSession& session, const HttpRequest& request,
                                   std::chrono::milliseconds first_pause,
                                   const std::function<Status()>& check);

}  // namespace tandem
