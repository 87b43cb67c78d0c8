#include "sources/http.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <ctime>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace tandem {
namespace {

constexpr size_t kMaxBody = size_t{64} << 20;
constexpr size_t kMaxErrorBody = size_t{64} << 10;
constexpr size_t kMaxHeaders = 500;
constexpr int kMaxRedirects = 10;

void InitializeOnce() {
  static const CURLcode kDone = curl_global_init(CURL_GLOBAL_DEFAULT);
  TANDEM_CHECK(kDone == CURLE_OK, "libcurl cannot start");
}

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Where curl was built for another distribution, its own default file does not exist here.
std::string SystemCertificates() {
  for (const char* file : {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                           "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}) {
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) return file;
  }
  return {};
}

class HeaderList {
 public:
  ~HeaderList() { curl_slist_free_all(list_); }
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  void Add(const std::string& line) {
    curl_slist* longer = curl_slist_append(list_, line.c_str());
    TANDEM_CHECK(longer != nullptr, "out of memory");
    list_ = longer;
  }
  curl_slist* get() const { return list_; }

 private:
  curl_slist* list_ = nullptr;
};

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// The URL that a Location names, which may be relative to the one that was asked.
std::string Resolved(const std::string& base, std::string_view location) {
  const std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> url(curl_url(), curl_url_cleanup);
  char* text = nullptr;
  if (url == nullptr || curl_url_set(url.get(), CURLUPART_URL, base.c_str(), 0) != CURLUE_OK ||
      curl_url_set(url.get(), CURLUPART_URL, std::string(location).c_str(), 0) != CURLUE_OK ||
      curl_url_get(url.get(), CURLUPART_URL, &text, 0) != CURLUE_OK) {
    return {};
  }
  std::string resolved = text;
  curl_free(text);
  return resolved;
}

// Errors that the next attempt would meet again.
bool IsFinal(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string_view HttpResponse::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string_view AuthorityOf(std::string_view url) {
  const size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  return url.substr(url.rfind('@') + 1);  // npos + 1 is 0
}

std::string UrlEncode(std::string_view text, std::string_view keep) {
  std::string encoded;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 ||
        std::string_view("-_.~").find(c) != std::string_view::npos ||
        keep.find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

// What libcurl's callbacks fill.
struct HttpSession::Transfer {
  CURL* curl = nullptr;
  const Sink* sink = nullptr;
  HttpResponse response;
  bool refused = false;  // by the sink

  static size_t TakeHeader(const char* data, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string_view line = Trimmed({data, size * count});
    if (line.starts_with("HTTP/")) {  // of a response after those of a proxy, or of "100 Continue"
      transfer.response.headers.clear();
    } else if (const size_t colon = line.find(':');
               colon != std::string_view::npos && transfer.response.headers.size() < kMaxHeaders) {
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      transfer.response.headers.emplace(std::move(name), Trimmed(line.substr(colon + 1)));
    }
    return size * count;
  }

  static size_t TakeBody(const char* data, size_t size, size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const size_t bytes = size * count;
    long status = 0;
    curl_easy_getinfo(transfer.curl, CURLINFO_RESPONSE_CODE, &status);
    transfer.response.status = static_cast<int>(status);
    if (!transfer.response.ok()) {
      const size_t room = kMaxErrorBody - std::min(kMaxErrorBody, transfer.response.body.size());
      transfer.response.body.append(data, std::min(bytes, room));
      return bytes;
    }
    if ((*transfer.sink)(transfer.response, std::as_bytes(std::span(data, bytes)))) return bytes;
    transfer.refused = true;
    return bytes + 1;  // not what was taken: libcurl ends the transfer
  }
};

HttpSession::HttpSession(std::filesystem::path certificates)
    : certificates_(std::move(certificates)), curl_((InitializeOnce(), curl_easy_init())) {
  TANDEM_CHECK(curl_ != nullptr, "libcurl makes no session");
}

HttpSession::~HttpSession() { curl_easy_cleanup(curl_); }

Result<HttpResponse> HttpSession::SendOnce(const HttpRequest& request, const std::string& url,
                                           bool with_secrets, const Sink& sink) {
  CURL* const curl = curl_;
  curl_easy_reset(curl);  // connections are kept
  Transfer transfer{.curl = curl, .sink = &sink, .response = {}};
  std::array<char, CURL_ERROR_SIZE> error{};
  HeaderList headers;
  for (const std::string& header : request.headers) headers.Add(header);
  CURLcode refused = CURLE_OK;
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = curl_easy_setopt(curl, option, value);
    if (refused == CURLE_OK) refused = code;
  };
  set(CURLOPT_ERRORBUFFER, error.data());
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});  // bodies are large: no shared windows
  set(CURLOPT_USERAGENT, "tandem");
  set(CURLOPT_CONNECTTIMEOUT, static_cast<long>(request.connect.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(request.stall.count()));
  if (request.ended) {
    constexpr auto kLook = [](void* look, curl_off_t, curl_off_t, curl_off_t, curl_off_t) -> int {
      return (*static_cast<const std::function<bool()>*>(look))() ? 1 : 0;
    };
    set(CURLOPT_NOPROGRESS, 0L);
    set(CURLOPT_XFERINFOFUNCTION,
        static_cast<int (*)(void*, curl_off_t, curl_off_t, curl_off_t, curl_off_t)>(kLook));
    set(CURLOPT_XFERINFODATA, &request.ended);
  }
  // Refused after some failures, by versions that still hold the old one then.
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, 512L << 10);
  if (!request.use_proxy) set(CURLOPT_PROXY, "");
  static const std::string kSystem = SystemCertificates();
  const std::string& trusted = certificates_.empty() ? kSystem : certificates_.native();
  if (!trusted.empty()) set(CURLOPT_CAINFO, trusted.c_str());
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  std::string range;
  if (request.range) {
    range = fmt::format("{}-{}", request.range->first, request.range->second);
    set(CURLOPT_RANGE, range.c_str());
  }
  std::string signer;
  std::string user;
  if (with_secrets) {
    for (const std::string& secret : request.secrets) headers.Add(secret);
    if (request.signature) {
      const AwsSignature& signature = *request.signature;
      signer = fmt::format("aws:amz:{}:s3", signature.region);
      user = signature.access_key_id + ":" + signature.secret_access_key;
      set(CURLOPT_AWS_SIGV4, signer.c_str());
      set(CURLOPT_USERPWD, user.c_str());
      if (!signature.session_token.empty()) {
        headers.Add("x-amz-security-token: " + signature.session_token);
      }
    }
  }
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_HEADERFUNCTION, &Transfer::TakeHeader);
  set(CURLOPT_HEADERDATA, &transfer);
  set(CURLOPT_WRITEFUNCTION, &Transfer::TakeBody);
  set(CURLOPT_WRITEDATA, &transfer);
  if (refused != CURLE_OK) {
    return FailedPrecondition(
        fmt::format("{}: cannot be asked: {}", AuthorityOf(url), curl_easy_strerror(refused)));
  }
  const CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  transfer.response.status = static_cast<int>(status);
  if (code == CURLE_OK) return std::move(transfer.response);
  if (transfer.refused || code == CURLE_ABORTED_BY_CALLBACK) {
    return Cancelled("the transfer was ended");
  }
  const std::string sentence = fmt::format(
      "{}: {}", AuthorityOf(url), error[0] != '\0' ? error.data() : curl_easy_strerror(code));
  return IsFinal(code) ? FailedPrecondition(sentence) : Unavailable(sentence);
}

Result<HttpResponse> HttpSession::Send(const HttpRequest& request, const Sink& sink) {
  std::string url = request.url;
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    const bool same_host =
        AuthorityOf(url) == AuthorityOf(request.url) &&
        url.substr(0, url.find(':')) == request.url.substr(0, request.url.find(':'));
    TANDEM_ASSIGN_OR_RETURN(HttpResponse response, SendOnce(request, url, same_host, sink));
    const std::string_view location = response.Header("location");
    if (!request.follow_redirects || !IsRedirect(response.status) || location.empty()) {
      return response;
    }
    std::string next = Resolved(url, location);
    if (next.empty()) return FailedPrecondition(fmt::format("{}: redirects to no URL", url));
    if (url.starts_with("https:") && !next.starts_with("https:")) {
      return FailedPrecondition(fmt::format("{}: redirects to {}, which is not encrypted",
                                            AuthorityOf(url), AuthorityOf(next)));
    }
    url = std::move(next);
  }
  return FailedPrecondition(
      fmt::format("{}: more than {} redirects", AuthorityOf(request.url), kMaxRedirects));
}

Result<HttpResponse> HttpSession::Send(const HttpRequest& request) {
  std::string body;
  Result<HttpResponse> response =
      Send(request, [&](const HttpResponse&, std::span<const std::byte> bytes) {
        if (body.size() + bytes.size() > kMaxBody) return false;
        body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        return true;
      });
  if (response.ok() && response->ok()) response->body = std::move(body);
  if (response.status().code() == Code::kCancelled) {
    return FailedPrecondition(
        fmt::format("{}: its answer is longer than {} bytes", AuthorityOf(request.url), kMaxBody));
  }
  return response;
}

bool MayTryAgain(int status) {
  return status == 408 || status == 429 || status == 500 || (status >= 502 && status <= 504);
}

std::optional<std::chrono::milliseconds> Backoff::Fail(const HttpResponse* response) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongest{30'000};
  constexpr int64_t kLongestAsked = 300;  // seconds
  if (++failures_ >= kMaxFailures) return std::nullopt;
  const std::string asked(response == nullptr ? "" : response->Header("retry-after"));
  if (!asked.empty()) {
    int64_t seconds = 0;  // or a date
    const auto read = std::from_chars(asked.data(), asked.data() + asked.size(), seconds);
    if (read.ec != std::errc()) {
      const time_t until = curl_getdate(asked.c_str(), nullptr);
      seconds = until < 0 ? 1 : until - std::time(nullptr);
    }
    return std::chrono::seconds(std::clamp<int64_t>(seconds, 0, kLongestAsked));
  }
  return std::min(first_ * (int64_t{1} << (failures_ - 1)), kLongest);
}

Result<HttpResponse> SendPatiently(HttpSession& session, const HttpRequest& request,
                                   std::chrono::milliseconds first_pause,
                                   const std::function<Status()>& check) {
  Backoff backoff(first_pause);
  HttpRequest watched = request;
  if (check) watched.ended = [&check] { return !check().ok(); };
  while (true) {
    Result<HttpResponse> response = session.Send(watched);
    if (check) TANDEM_RETURN_IF_ERROR(check());
    const bool again = response.ok() ? MayTryAgain(response->status)
                                     : response.status().code() == Code::kUnavailable;
    if (!again) return response;
    const auto pause = backoff.Fail(response.ok() ? &response.value() : nullptr);
    if (!pause) return response;
    LogWarning("{}; next attempt in {:.1f} s",
               response.ok()
                   ? fmt::format("{} answers {}", AuthorityOf(request.url), response->status)
                   : response.status().message(),
               static_cast<double>(pause->count()) / 1000);
    const auto until = std::chrono::steady_clock::now() + *pause;
    while (std::chrono::steady_clock::now() < until) {
      if (check) TANDEM_RETURN_IF_ERROR(check());
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(
          std::chrono::milliseconds(50), until - std::chrono::steady_clock::now()));
    }
  }
}

}  // namespace tandem
