// The transport alone: limits, time-outs, framing, disconnects, over a handler that follows
// instructions.
#include "serve/http/http_server.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/http/client.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;

// Instructions for a handler's replies, and the number of live ones.
struct Behaviour {
  std::atomic<int> alive{0};
  std::atomic<int> destroyed{0};
  std::atomic<bool> draining{false};
  std::atomic<bool> released{false};  // the replies to /later and /begun
  std::mutex mutex;
  std::function<void()> wake;  // guarded by mutex; of the last of these replies

  void Release() {
    released = true;
    const std::lock_guard lock(mutex);
    wake();
  }
};

// Never answers.
class SilentReply final : public Reply {
 public:
  explicit SilentReply(Behaviour& behaviour) : behaviour_(behaviour) { ++behaviour_.alive; }
  ~SilentReply() override {
    --behaviour_.alive;
    ++behaviour_.destroyed;
  }
  Progress Poll(HttpHead&, std::string&) override { return Progress::kPending; }

 private:
  Behaviour& behaviour_;
};

// Writes `first`, if any, and the rest when released.
class LaterReply final : public Reply {
 public:
  LaterReply(Behaviour& behaviour, std::function<void()> wake, std::string first = "")
      : behaviour_(behaviour), first_(std::move(first)) {
    const std::lock_guard lock(behaviour_.mutex);
    behaviour_.wake = std::move(wake);
    ++behaviour_.alive;
  }
  ~LaterReply() override { --behaviour_.alive; }
  Progress Poll(HttpHead&, std::string& out) override {
    if (!first_.empty()) {
      out = std::exchange(first_, "");
      return Progress::kMore;
    }
    if (!behaviour_.released) return Progress::kPending;
    out = "at last";
    return Progress::kLast;
  }

 private:
  Behaviour& behaviour_;
  std::string first_;
};

// `pieces` pieces of `bytes` each, as fast as the transport takes them.
class FloodReply final : public Reply {
 public:
  FloodReply(Behaviour& behaviour, int pieces, size_t bytes)
      : behaviour_(behaviour), pieces_(pieces), bytes_(bytes) {
    ++behaviour_.alive;
  }
  ~FloodReply() override { --behaviour_.alive; }
  Progress Poll(HttpHead& head, std::string& out) override {
    head.content_type = "text/plain";
    out.assign(bytes_, 'x');
    return --pieces_ > 0 ? Progress::kMore : Progress::kLast;
  }

 private:
  Behaviour& behaviour_;
  int pieces_;
  const size_t bytes_;
};

// Breaks off after `pieces` pieces, the last of which comes with the end.
class BrokenReply final : public Reply {
 public:
  explicit BrokenReply(int pieces) : pieces_(pieces) {}
  Progress Poll(HttpHead&, std::string& out) override {
    out = "the beginning ";
    return --pieces_ > 0 ? Progress::kMore : Progress::kBroken;
  }

 private:
  int pieces_;
};

class TestHandler final : public HttpHandler {
 public:
  Behaviour behaviour;

  Admission Admit(const HttpRequest& header) override {
    Admission admission;
    admission.body_limit = header.path == "/small" ? 10 : 100'000;
    if (header.path == "/refused") admission.refusal = MakeReply(401, "no key");
    return admission;
  }
  bool draining() const override { return behaviour.draining; }
  std::unique_ptr<Reply> Error(std::string_view path, int status,
                               std::string_view message) override {
    return MakeReply(status, fmt::format("{{\"error\":\"{}|{}|{}\"}}", path, status, message));
  }
  std::unique_ptr<Reply> Handle(HttpRequest request, std::function<void()> wake) override {
    if (request.path == "/later") {
      return std::make_unique<LaterReply>(behaviour, std::move(wake));
    }
    if (request.path == "/begun") {
      return std::make_unique<LaterReply>(behaviour, std::move(wake), "it begins ");
    }
    if (request.path == "/silent") return std::make_unique<SilentReply>(behaviour);
    if (request.path == "/flood") return std::make_unique<FloodReply>(behaviour, 100'000, 16 << 10);
    if (request.path == "/broken") return std::make_unique<BrokenReply>(1);
    if (request.path == "/broken_later") return std::make_unique<BrokenReply>(3);
    if (request.path == "/pieces") return std::make_unique<FloodReply>(behaviour, 3, 5);
    return MakeReply(200, fmt::format("{} {} {}", request.method, request.path, request.body));
  }
};

class HttpServerTest : public testing::Test {
 protected:
  void Start(HttpLimits limits = {}) {
    HttpServerOptions options;
    options.port = 0;
    options.limits = limits;
    server_ = *HttpServer::Start(options, handler_);
  }

  HttpClient Client() const {
    return HttpClient("127.0.0.1", server_->port(), std::chrono::seconds(10));
  }

  // The response to raw bytes.
  ClientResponse Exchange(std::string_view bytes) const {
    HttpClient client = Client();
    EXPECT_TRUE(client.Connect().ok());
    EXPECT_TRUE(client.WriteRaw(bytes).ok());
    Result<ClientResponse> response = client.ReadResponse();
    EXPECT_TRUE(response.ok()) << response.status().message();
    return response.ok() ? *std::move(response) : ClientResponse();
  }

  // True when the server closes the connection without a byte.
  static bool IsClosed(HttpClient& client) {
    const Result<std::string> read = client.ReadRaw(1);
    return read.ok() ? read->empty() : read.status().code() == Code::kUnavailable;
  }

  TestHandler handler_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, KeepsAConnectionForManyRequests) {
  Start();
  HttpClient client = Client();
  for (int i = 0; i < 5; ++i) {
    const Result<ClientResponse> response = client.Post("/echo?x=1", std::to_string(i));
    ASSERT_TRUE(response.ok());
    EXPECT_EQ(response->body, fmt::format("POST /echo {}", i));
    EXPECT_EQ(response->Header("connection"), "keep-alive");
  }
  EXPECT_EQ(server_->open_connections(), 1);
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(
      client
          .WriteRaw("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /pieces HTTP/1.1\r\nHost: x\r\n\r\n"
                    "GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
          .ok());
  EXPECT_EQ(client.ReadResponse()->body, "GET /a ");
  EXPECT_EQ(client.ReadResponse()->body, "xxxxxxxxxxxxxxx");
  EXPECT_EQ(client.ReadResponse()->body, "GET /b ");
}

TEST_F(HttpServerTest, ReadsChunkedBodiesAndAbsoluteTargets) {
  Start();
  EXPECT_EQ(
      Exchange("POST http://host/p HTTP/1.1\r\nHost: host\r\nTransfer-Encoding: chunked\r\n\r\n"
               "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")
          .body,
      "POST /p abcde");
}

TEST_F(HttpServerTest, EchoesTheRequestIdOrMakesOne) {
  Start();
  HttpClient client = Client();
  EXPECT_EQ(client.Get("/", {{"X-Request-Id", "abc-1"}})->Header("x-request-id"), "abc-1");
  const Result<ClientResponse> own = client.Get("/");
  EXPECT_EQ(own->Header("x-request-id").size(), 16u);
}

TEST_F(HttpServerTest, AnswersEveryLimitWithItsStatus) {
  Start();
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n";
  EXPECT_EQ(Exchange("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n").status,
            414);
  EXPECT_EQ(Exchange("GET /" + std::string(40000, 'a')).status, 414);
  EXPECT_EQ(Exchange(get + "A: " + std::string(17000, 'a') + "\r\n\r\n").status, 431);
  std::string many = get;
  for (int i = 0; i < 101; ++i) many += fmt::format("h{}: 1\r\n", i);
  EXPECT_EQ(Exchange(many + "\r\n").status, 431);
  EXPECT_EQ(Exchange("POST /small HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n").status, 413);
  EXPECT_EQ(Exchange("POST /small HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                     "chunked\r\n\r\nb\r\n01234567890\r\n")
                .status,
            413);
}

TEST_F(HttpServerTest, AnswersWhatIsNotHttpWithBadRequest) {
  Start();
  const char* const kBad[] = {
      "rubbish\r\n\r\n",
      "GET / HTTP/9.9\r\n\r\n",
      "GET relative HTTP/1.1\r\nHost: x\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
      "GET / HTTP/1.1\r\nHost: x\r\nName : x\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
      ("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n"),
      "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
  };
  for (const char* bytes : kBad) {
    const ClientResponse response = Exchange(bytes);
    EXPECT_EQ(response.status, 400) << bytes;
    EXPECT_EQ(response.Header("connection"), "close") << bytes;
    EXPECT_NE(response.body.find("error"), std::string::npos) << bytes;
  }
  EXPECT_EQ(Client().Get("/")->status, 200);
}

TEST_F(HttpServerTest, SlowSendersGetATimeoutAndIdleOnesAreClosed) {
  HttpLimits limits;
  limits.header_timeout = milliseconds(80);
  limits.body_timeout = milliseconds(80);
  limits.idle_timeout = milliseconds(80);
  Start(limits);
  EXPECT_EQ(Exchange("GET / HTTP/1.1\r\nHos").status, 408);
  EXPECT_EQ(Exchange("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab").status, 408);
  HttpClient idle = Client();
  ASSERT_TRUE(idle.Connect().ok());
  EXPECT_TRUE(IsClosed(idle));
  // Sending a byte now and then does not extend the time.
  HttpClient dripping = Client();
  ASSERT_TRUE(dripping.Connect().ok());
  const auto start = std::chrono::steady_clock::now();
  for (const char c : std::string("GET / HTTP/1.1\r\nHost: x\r\nMore: y")) {
    if (!dripping.WriteRaw(std::string(1, c)).ok()) break;
    std::this_thread::sleep_for(milliseconds(10));
    if (std::chrono::steady_clock::now() - start > milliseconds(150)) break;
  }
  EXPECT_EQ(dripping.ReadResponse()->status, 408);
}

TEST_F(HttpServerTest, AReaderThatStallsIsCut) {
  HttpLimits limits;
  limits.write_stall_timeout = milliseconds(150);
  Start(limits);
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("GET /flood HTTP/1.1\r\nHost: x\r\n\r\n").ok());
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 1; }));
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 0; }));
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 0; }));
}

TEST_F(HttpServerTest, AClientThatGoesDestroysItsReply) {
  Start();
  {
    HttpClient client = Client();
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(client.WriteRaw("GET /silent HTTP/1.1\r\nHost: x\r\n\r\n").ok());
    EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 0; }));
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 0; }));
  EXPECT_EQ(server_->active_requests(), 0);
}

TEST_F(HttpServerTest, ARefusalComesBeforeTheBody) {
  Start();
  const char* const kHeaders[] = {
      "Content-Length: 60000000\r\n",
      "Content-Length: 60000000\r\nExpect: 100-continue\r\n",
      "Transfer-Encoding: chunked\r\n",
  };
  for (const char* header : kHeaders) {
    HttpClient client = Client();
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(
        client.WriteRaw(fmt::format("POST /refused HTTP/1.1\r\nHost: x\r\n{}\r\n", header)).ok());
    const std::string head = *client.ReadRaw(4096);
    EXPECT_TRUE(head.starts_with("HTTP/1.1 401 ")) << head;
    EXPECT_NE(head.find("Connection: close\r\n"), std::string::npos) << head;
  }
  // Without a body the connection stays open.
  HttpClient client = Client();
  EXPECT_EQ(client.Get("/refused")->Header("connection"), "keep-alive");
  EXPECT_EQ(client.Post("/refused", "")->Header("connection"), "keep-alive");
  EXPECT_EQ(client.Get("/")->status, 200);
}

TEST_F(HttpServerTest, ARefusalReachesAClientThatSendsOn) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(
      client.WriteRaw("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
          .ok());
  ASSERT_TRUE(client.WriteRaw(std::string(32 << 20, 'x')).ok());
  EXPECT_EQ(client.ReadResponse()->status, 401);
}

TEST_F(HttpServerTest, ALastResponseReachesAClientThatSendsOn) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client
                  .WriteRaw("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" +
                            std::string(32 << 20, 'x'))
                  .ok());
  EXPECT_EQ(client.ReadResponse()->body, "GET /a ");
}

TEST_F(HttpServerTest, BodiesTogetherAreBounded) {
  HttpLimits limits;
  limits.all_body_bytes = 1000;
  Start(limits);
  HttpClient client = Client();
  for (int i = 0; i < 5; ++i) {  // the budget is released after each body
    EXPECT_EQ(client.Post("/", std::string(800, 'a'))->status, 200);
    EXPECT_EQ(client.Post("/", std::string(1001, 'a'))->status, 503);
  }
}

TEST_F(HttpServerTest, AClientThatSaysItSendsNothingMoreGetsItsAnswer) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(
      client.WriteRaw("POST /later HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi").ok());
  client.ShutdownWrite();
  // The server has noticed, and checks whether the client still reads.
  EXPECT_EQ(*client.ReadRaw(25), "HTTP/1.1 100 Continue\r\n\r\n");
  EXPECT_EQ(handler_.behaviour.alive, 1);
  handler_.behaviour.Release();
  EXPECT_EQ(client.ReadResponse()->body, "at last");
  EXPECT_EQ(*client.ReadRaw(1), "");
}

TEST_F(HttpServerTest, HalfClosedPipelinesAreAnsweredToTheEnd) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client
                  .WriteRaw("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /pieces HTTP/1.1\r\nHost: x\r\n"
                            "\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n")
                  .ok());
  client.ShutdownWrite();
  EXPECT_EQ(client.ReadResponse()->body, "GET /a ");
  EXPECT_EQ(client.ReadResponse()->body, "xxxxxxxxxxxxxxx");
  EXPECT_EQ(client.ReadResponse()->body, "GET /b ");
  EXPECT_EQ(*client.ReadRaw(1), "");
}

TEST_F(HttpServerTest, AnHttp10ClientThatGoesDestroysItsReply) {
  Start();
  {
    HttpClient client = Client();
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(client.WriteRaw("GET /silent HTTP/1.0\r\n\r\n").ok());
    EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 0; }));
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 0; }));
}

// It cannot be asked: HTTP/1.0 has no interim responses.
TEST_F(HttpServerTest, AnHttp10ClientThatHalfClosesIsToldThatItCountsAsGone) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("GET /silent HTTP/1.0\r\n\r\n").ok());
  client.ShutdownWrite();
  const Result<ClientResponse> response = client.ReadResponse();
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 400);
  EXPECT_NE(response->body.find("/silent|400|the client ended its sending side"),
            std::string::npos);
  EXPECT_EQ(response->Header("connection"), "close");
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 0; }));
}

TEST_F(HttpServerTest, AnHttp10ResponseThatHasBegunReachesAHalfClosedClient) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("GET /begun HTTP/1.0\r\n\r\n").ok());
  ASSERT_TRUE(Eventually([&] { return handler_.behaviour.alive == 1; }));
  client.ShutdownWrite();
  handler_.behaviour.Release();
  EXPECT_EQ(client.ReadResponse()->body, "it begins at last");
}

TEST_F(HttpServerTest, TooManyConnectionsAreTurnedAway) {
  HttpLimits limits;
  limits.connections = 2;
  Start(limits);
  HttpClient first = Client();
  HttpClient second = Client();
  ASSERT_EQ(first.Get("/")->status, 200);
  ASSERT_EQ(second.Get("/")->status, 200);
  HttpClient third = Client();
  ASSERT_TRUE(third.Connect().ok());
  std::string body;
  body.resize(9'999'999, 'x');
  ASSERT_TRUE(
      third.WriteRaw("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + body).ok());
  EXPECT_EQ(third.ReadResponse()->status, 503);
  first.Close();
  EXPECT_TRUE(Eventually([&] { return server_->open_connections() == 1; }));
  EXPECT_EQ(Client().Get("/")->status, 200);
}

TEST_F(HttpServerTest, Http10GetsAStreamThatEndsWithTheConnection) {
  Start();
  const ClientResponse response = Exchange("GET /pieces HTTP/1.0\r\n\r\n");
  EXPECT_EQ(response.body, "xxxxxxxxxxxxxxx");
  EXPECT_EQ(response.Header("transfer-encoding"), "");
}

TEST_F(HttpServerTest, AReplyThatBreaksOffLacksItsEnd) {
  Start();
  for (const char* path : {"/broken", "/broken_later"}) {
    HttpClient client = Client();
    ASSERT_TRUE(client.Connect().ok());
    ASSERT_TRUE(client.WriteRaw(fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path)).ok());
    std::string all;
    for (std::string part = *client.ReadRaw(4096); !part.empty(); part = *client.ReadRaw(4096))
      all += part;
    EXPECT_TRUE(all.starts_with("HTTP/1.1 200 OK\r\n")) << all;
    EXPECT_TRUE(all.ends_with("\r\ne\r\nthe beginning \r\n")) << all;
    EXPECT_EQ(Client().Get(path).status().code(), Code::kUnavailable);
  }
}

// There the end of the connection is the end of the body.
TEST_F(HttpServerTest, Http10SeesAReplyThatBreaksOffAsAReset) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("GET /broken HTTP/1.0\r\n\r\n").ok());
  Result<std::string> part = client.ReadRaw(4096);
  while (part.ok() && !part->empty()) part = client.ReadRaw(4096);
  EXPECT_EQ(part.status().code(), Code::kUnavailable);
}

TEST_F(HttpServerTest, HeadIsAGetWithoutItsBody) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("HEAD /h HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok());
  std::string all;
  for (std::string part = *client.ReadRaw(4096); !part.empty(); part = *client.ReadRaw(4096))
    all += part;
  EXPECT_NE(all.find("Content-Length: 7\r\n"), std::string::npos);
  EXPECT_TRUE(all.ends_with("\r\n\r\n"));
}

TEST_F(HttpServerTest, HeadOfAStreamLeavesTheConnectionInStep) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client
                  .WriteRaw("HEAD /pieces HTTP/1.1\r\nHost: x\r\n\r\n"
                            "GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                  .ok());
  std::string all;
  for (std::string part = *client.ReadRaw(4096); !part.empty(); part = *client.ReadRaw(4096))
    all += part;
  const size_t end = all.find("\r\n\r\n");
  ASSERT_NE(end, std::string::npos);
  EXPECT_TRUE(all.substr(end + 4).starts_with("HTTP/1.1 200 OK")) << all;
}

TEST_F(HttpServerTest, ExpectContinueIsAnswered) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(
      client
          .WriteRaw(
              "POST /e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
          .ok());
  EXPECT_EQ(*client.ReadRaw(25), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.WriteRaw("ok").ok());
  EXPECT_EQ(client.ReadResponse()->body, "POST /e ok");
}

TEST_F(HttpServerTest, DrainingClosesConnectionsAfterTheirResponse) {
  Start();
  HttpClient client = Client();
  EXPECT_EQ(client.Get("/")->Header("connection"), "keep-alive");
  handler_.behaviour.draining = true;
  EXPECT_EQ(client.Get("/")->Header("connection"), "close");
}

TEST_F(HttpServerTest, StopDestroysWhatIsUnderWay) {
  Start();
  HttpClient client = Client();
  ASSERT_TRUE(client.Connect().ok());
  ASSERT_TRUE(client.WriteRaw("GET /silent HTTP/1.1\r\nHost: x\r\n\r\n").ok());
  EXPECT_TRUE(Eventually([&] { return handler_.behaviour.alive == 1; }));
  server_->Stop();
  EXPECT_EQ(handler_.behaviour.alive, 0);
  EXPECT_TRUE(IsClosed(client));
}

TEST_F(HttpServerTest, ATakenPortIsNamedWithOneThatIsFree) {
  Start();
  HttpServerOptions options;
  options.port = server_->port();
  const Result<std::unique_ptr<HttpServer>> second = HttpServer::Start(options, handler_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(
      second.status().message().find(fmt::format("Port {} is in use; try --port ", options.port)),
      std::string::npos);
  options.host = "example.invalid";
  EXPECT_EQ(HttpServer::Start(options, handler_).status().code(), Code::kInvalidArgument);
}

TEST_F(HttpServerTest, ServesAndIsAskedOverIpv6) {
  HttpServerOptions options;
  options.host = "::1";
  options.port = 0;
  Result<std::unique_ptr<HttpServer>> server = HttpServer::Start(options, handler_);
  if (!server.ok()) GTEST_SKIP() << "no IPv6 here: " << server.status().message();
  EXPECT_EQ(HttpClient("::1", (*server)->port()).Get("/a")->body, "GET /a ");
}

TEST(ParseUrlTest, TakesUrlsApart) {
  const Result<HttpEndpoint> endpoint = ParseUrl("http://localhost:8000/v1/");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->host, "localhost");
  EXPECT_EQ(endpoint->port, 8000);
  EXPECT_EQ(endpoint->path, "/v1");
  EXPECT_EQ(ParseUrl("[::1]:9")->host, "::1");
  EXPECT_EQ(ParseUrl("https://x").status().code(), Code::kUnimplemented);
  EXPECT_FALSE(ParseUrl("http://x:abc").ok());
}

}  // namespace
}  // namespace tandem::serve
