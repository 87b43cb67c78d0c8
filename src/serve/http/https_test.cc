// A whole server over TLS, and clients of OpenSSL.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/testing/temporary_folder.h"
#include "serve/testing/test_certificate.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

// Blocking.
class TlsClient {
 public:
  explicit TlsClient(HttpClient tcp, int newest = TLS1_3_VERSION)
      : tcp_(std::move(tcp)), context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    // The security level would refuse old versions before the server can.
    SSL_CTX_set_security_level(context_.get(), 0);
    SSL_CTX_set_max_proto_version(context_.get(), newest);
    EXPECT_TRUE(tcp_.Connect().ok());
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), tcp_.fd());
  }
  ~TlsClient() { ssl_.reset(); }

  SSL* ssl() const { return ssl_.get(); }
  bool Handshake() { return SSL_connect(ssl_.get()) == 1; }
  void Write(std::string_view bytes) {
    EXPECT_EQ(SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())),
              static_cast<int>(bytes.size()));
  }
  // Reads until the text has been read, or to the end; everything that was read.
  std::string ReadUntil(std::string_view text) {
    std::string all;
    char buffer[4096];
    while (text.empty() || all.find(text) == std::string::npos) {
      const int got = SSL_read(ssl_.get(), buffer, sizeof(buffer));
      if (got <= 0) break;
      all.append(buffer, static_cast<size_t>(got));
    }
    return all;
  }
  std::string ReadAll() { return ReadUntil(""); }
  // Whether the server has said that nothing follows, which tells its end from a cut.
  bool IsEnded() const { return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0; }
  void Close() {
    ssl_.reset();
    tcp_.Close();
  }

 private:
  HttpClient tcp_;
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> ssl_{nullptr, SSL_free};
};

std::string Request(std::string_view prompt, int tokens, bool stream) {
  const std::string body =
      fmt::format(R"({{"prompt":"{}","max_tokens":{},"stream":{}}})", prompt, tokens, stream);
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{}",
      body.size(), body);
}

class HttpsTest : public testing::Test {
 protected:
  ServerOptions Options() {
    ServerOptions options;
    options.http.tls = WriteCertificate(folder_.path(), "server");
    return options;
  }
  static TlsClient Client(const TestServer& server, int newest = TLS1_3_VERSION) {
    return TlsClient(server.Client(), newest);
  }

  TemporaryFolder folder_;
};

TEST_F(HttpsTest, AnswersAndStreamsOverOneConnection) {
  TestServer server({}, Options());
  TlsClient client = Client(server);
  ASSERT_TRUE(client.Handshake());
  EXPECT_STREQ(SSL_get_version(client.ssl()), "TLSv1.3");
  client.Write(Request("tandem", 3, false));
  EXPECT_THAT(client.ReadUntil("}}"), HasSubstr(R"("text":"One")"));
  client.Write(Request("tandem", 3, true));
  EXPECT_THAT(client.ReadUntil("data: [DONE]"), HasSubstr("200 OK"));
}

TEST_F(HttpsTest, RecordsThatComeTogetherAreAllAnswered) {
  TestServer server({}, Options());
  TlsClient client = Client(server);
  ASSERT_TRUE(client.Handshake());
  // Two records in one segment: the second is not seen by waiting for the socket.
  BIO* const out = BIO_new(BIO_s_mem());
  BIO* const socket = SSL_get_wbio(client.ssl());
  BIO_up_ref(socket);
  SSL_set0_wbio(client.ssl(), out);
  client.Write("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n");
  client.Write("GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(out, &bytes);
  ASSERT_EQ(BIO_write(socket, bytes, static_cast<int>(size)), size);
  SSL_set0_wbio(client.ssl(), socket);
  const std::string answers = client.ReadAll();
  EXPECT_THAT(answers, HasSubstr(R"("object":"list")"));
  EXPECT_THAT(answers, HasSubstr(R"("version")"));
  EXPECT_TRUE(client.IsEnded());
}

TEST_F(HttpsTest, TakesALargeBody) {
  TestServer server({}, Options());
  TlsClient client = Client(server);
  ASSERT_TRUE(client.Handshake());
  client.Write(Request(std::string(3 << 20, 'x'), 1, false));
  EXPECT_THAT(client.ReadUntil("}}"), StartsWith("HTTP/1.1 400 Bad Request"));  // too long a prompt
}

TEST_F(HttpsTest, AClientThatLeavesCancelsItsRequest) {
  FakeEngineOptions paced;
  paced.step = milliseconds(5);
  TestServer server(std::move(paced), Options());
  TlsClient client = Client(server);
  ASSERT_TRUE(client.Handshake());
  client.Write(Request("endless", 2000, true));
  client.ReadUntil("data: ");
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server.engine.num_cancelled() == 1; }));
  EXPECT_TRUE(Eventually([&] { return server.server->active_requests() == 0; }));
}

TEST_F(HttpsTest, AClientThatOnlyEndsItsSideGetsItsAnswer) {
  FakeEngineOptions paced;
  paced.step = milliseconds(5);
  TestServer server(std::move(paced), Options());
  TlsClient client = Client(server);
  ASSERT_TRUE(client.Handshake());
  client.Write(Request("endless", 20, false));
  SSL_shutdown(client.ssl());  // says that nothing follows
  EXPECT_THAT(client.ReadUntil("}}"), HasSubstr("abcdefgh"));
  EXPECT_EQ(server.engine.num_cancelled(), 0);
}

TEST_F(HttpsTest, PlainHttpIsAnsweredInPlainWith400) {
  TestServer server({}, Options());
  HttpClient client = server.Client();
  const Result<ClientResponse> response = client.Post("/v1/completions", R"({"prompt":"x"})");
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, 400);
  EXPECT_EQ(response->Header("connection"), "close");
  EXPECT_THAT(response->body, HasSubstr("this port speaks HTTPS"));
}

TEST_F(HttpsTest, VersionsBefore12AreRefused) {
  TestServer server({}, Options());
  EXPECT_FALSE(Client(server, TLS1_1_VERSION).Handshake());
  EXPECT_TRUE(Client(server, TLS1_2_VERSION).Handshake());
}

TEST_F(HttpsTest, OnlyHttp11IsNegotiated) {
  TestServer server({}, Options());
  const auto negotiated = [&](const std::string& offered) -> std::string {
    TlsClient client = Client(server);
    SSL_set_alpn_protos(client.ssl(), reinterpret_cast<const unsigned char*>(offered.data()),
                        static_cast<unsigned int>(offered.size()));
    if (!client.Handshake()) return "refused";
    const unsigned char* name = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(client.ssl(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  };
  EXPECT_EQ(negotiated("\x02h2\x08http/1.1"), "http/1.1");
  EXPECT_EQ(negotiated("\x02h2"), "refused");
}

TEST_F(HttpsTest, ASlowHandshakeIsClosedAndHoldsUpNobody) {
  ServerOptions options = Options();
  options.http.threads = 1;
  options.http.limits.handshake_timeout = milliseconds(300);
  TestServer server({}, options);
  std::vector<HttpClient> slow;
  for (const std::string_view begin : {"", "\x16", "\x16\x03\x01\x02"}) {
    slow.push_back(server.Client());
    ASSERT_TRUE(slow.back().Connect().ok());
    ASSERT_TRUE(slow.back().WriteRaw(begin).ok());
  }
  TlsClient other = Client(server);
  ASSERT_TRUE(other.Handshake());
  other.Write("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(other.ReadUntil("}"), StartsWith("HTTP/1.1 200 OK"));
  for (HttpClient& client : slow) {
    const Result<std::string> end = client.ReadRaw(100);
    EXPECT_TRUE(!end.ok() || end->empty());
  }
}

TEST_F(HttpsTest, StoppingEndsHandshakes) {
  auto server = std::make_unique<TestServer>(FakeEngineOptions(), Options());
  HttpClient slow = server->Client();
  ASSERT_TRUE(slow.Connect().ok());
  TlsClient client = Client(*server);
  ASSERT_TRUE(client.Handshake());
  server.reset();
  const Result<std::string> end = slow.ReadRaw(100);
  EXPECT_TRUE(!end.ok() || end->empty());
}

TEST_F(HttpsTest, MetricsOnTheirOwnPortAreOverTlsToo) {
  ServerOptions options = Options();
  options.metrics_port = 0;
  TestServer server({}, options);
  HttpClient plain("127.0.0.1", server.server->metrics_port(), std::chrono::seconds(10));
  EXPECT_EQ(plain.Get("/metrics")->status, 400);
  TlsClient client(HttpClient("127.0.0.1", server.server->metrics_port()));
  ASSERT_TRUE(client.Handshake());
  client.Write("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(client.ReadAll(), HasSubstr("tandem_"));
}

TEST_F(HttpsTest, AHangupReadsTheFilesAgain) {
  const ServerOptions options = Options();
  TestServer server({}, options);
  std::thread running([&] { EXPECT_TRUE(server.server->Run().ok()); });
  const auto served = [&] {
    TlsClient client = Client(server);
    EXPECT_TRUE(client.Handshake());
    const std::unique_ptr<X509, void (*)(X509*)> certificate(
        SSL_get1_peer_certificate(client.ssl()), X509_free);
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    X509_digest(certificate.get(), EVP_sha256(), digest, &size);
    return std::string(reinterpret_cast<const char*>(digest), size);
  };
  const std::string before = served();
  WriteCertificate(folder_.path(), "server");  // over the old files
  std::raise(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return served() != before; }));
  const std::string after = served();
  std::filesystem::remove(options.http.tls.key);
  std::raise(SIGHUP);  // an error: the old ones stay
  EXPECT_EQ(served(), after);
  server.server->Shutdown();
  running.join();
}

TEST_F(HttpsTest, FilesThatDoNotServeStopTheStart) {
  TestServer running;
  ServerOptions options = Options();
  options.http.port = 0;
  options.http.tls.key = WriteCertificate(folder_.path(), "other").key;
  const auto server = Server::Start(options, running.engines, running.models, running.metrics);
  ASSERT_FALSE(server.ok());
  EXPECT_THAT(server.status().message(), HasSubstr("other.key: does not belong"));
}

}  // namespace
}  // namespace tandem::serve
