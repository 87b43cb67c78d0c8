// The parser alone, without a socket: accepted requests in pieces of any size, and refused ones.
#include "serve/http/request_parser.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>

namespace tandem::serve {
namespace {

using State = RequestParser::State;

constexpr std::string_view kPost = "POST /p HTTP/1.1\r\nHost: x\r\n";

// A parser and its unconsumed bytes, as a connection keeps them.
class Feeder {
 public:
  explicit Feeder(HttpLimits limits = {}) : parser(limits) {}

  // Feeds it until the request is complete or refused.
  State Put(std::string_view bytes, size_t piece = SIZE_MAX) {
    while (!bytes.empty() && !Ended()) {
      left += bytes.substr(0, piece);
      bytes.remove_prefix(std::min(piece, bytes.size()));
      State before{};
      do {
        before = parser.state();
        const size_t used = parser.Put(left);
        left.erase(0, used);
        taken += used;
        if (before == State::kHeader && parser.state() == State::kBody) parser.LimitBody(100'000);
      } while (!Ended() && parser.state() != before);
      most_left = std::max(most_left, left.size());
    }
    return parser.state();
  }
  bool Ended() const { return parser.state() == State::kDone || parser.state() == State::kRefused; }

  RequestParser parser;
  std::string left;
  size_t taken = 0;
  size_t most_left = 0;
};

// The status of a refused request; 0 if it is accepted.
int StatusOf(std::string_view bytes, HttpLimits limits = {}) {
  Feeder feeder(limits);
  feeder.Put(bytes);
  return feeder.parser.error().status;
}

TEST(RequestParserTest, TakesARequestInPiecesOfAnySize) {
  const std::string request =
      std::string(kPost) +
      "X-Request-Id: 7\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "3;name=value\r\nabc\r\n00a;flag\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n";
  for (size_t piece = 1; piece <= request.size(); ++piece) {
    Feeder feeder;
    ASSERT_EQ(feeder.Put(request + "GET /next", piece), State::kDone)
        << piece << feeder.parser.error().message;
    const HttpRequest taken = feeder.parser.TakeRequest();
    EXPECT_EQ(taken.method, "POST");
    EXPECT_EQ(taken.path, "/p");
    EXPECT_EQ(taken.host, "x");
    EXPECT_EQ(taken.body, "abc0123456789");
    EXPECT_EQ(taken.Header("x-request-id"), "7");
    EXPECT_TRUE(std::string_view("GET /next").starts_with(feeder.left));
  }
}

// The end of a request must not depend on how the network cut it.
TEST(RequestParserTest, MangledRequestsEndAtTheSameByteInPiecesOfAnySize) {
  const std::string samples[] = {
      std::string(kPost) + "Content-Length: 5\r\n\r\nabcdeGET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(kPost) +
          "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nt: u\r\n\r\nGET /",
      "GET http://x:1/a?b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n folded\r\n\r\nPOST /",
      "\r\nGET / HTTP/1.0\r\nA: b\r\n\r\nGET / HTTP/1.0\r\n\r\n",
  };
  constexpr std::string_view kBytes = "\r\n\r\n\t ,;:=\"0159afGx/\0\xff";
  std::mt19937 random(1);
  int done = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = samples[random() % std::size(samples)];
    for (size_t changes = random() % 4; changes > 0; --changes) {
      const size_t at = random() % bytes.size();
      const char byte = kBytes[random() % kBytes.size()];
      if (random() % 3 == 0) {
        bytes.erase(at, 1);
      } else if (random() % 2 == 0) {
        bytes.insert(at, 1, byte);
      } else {
        bytes[at] = byte;
      }
    }
    Feeder whole;
    Feeder pieces;
    const bool is_done = whole.Put(bytes) == State::kDone;
    ASSERT_EQ(pieces.Put(bytes, 1 + random() % 9) == State::kDone, is_done) << bytes;
    if (!is_done) continue;
    ++done;
    ASSERT_EQ(pieces.taken, whole.taken) << bytes;
    ASSERT_EQ(pieces.parser.request().body, whole.parser.request().body) << bytes;
    ASSERT_EQ(pieces.parser.request().headers, whole.parser.request().headers) << bytes;
    ASSERT_EQ(pieces.parser.keep_alive(), whole.parser.keep_alive()) << bytes;
  }
  EXPECT_GT(done, 5'000);
}

TEST(RequestParserTest, StopsAfterTheHeader) {
  RequestParser parser({});
  const std::string header = std::string(kPost) + "Content-Length: 3\r\n\r\n";
  EXPECT_EQ(parser.Put(header + "abc"), header.size());
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_EQ(parser.request().path, "/p");
  EXPECT_EQ(parser.Put("abcGET"), 3u);
  EXPECT_EQ(parser.state(), State::kDone);
}

TEST(RequestParserTest, RefusesFramingThatAProxyCouldReadOtherwise) {
  for (const char* fields : {
           "Transfer-Encoding: xchunked",
           "Transfer-Encoding: identity",
           "Transfer-Encoding: chunked, chunked",
           "Transfer-Encoding: gzip, chunked",
           "Transfer-Encoding: chunked, identity",
           "Transfer-Encoding: \"chunked\"",
           "Transfer-Encoding: chunked;q=1",
           "Transfer-Encoding:",
           "Transfer-Encoding: ,chunked",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
           "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
           "Transfer-Encoding: identity\r\nContent-Length: 3",
           "Transfer-Encoding : chunked",
           "Transfer-Encoding: chunked\r\nContent-Length: 3",
           "Content-Length: 3\r\nTransfer-Encoding: chunked",
           "Content-Length: 3\r\nContent-Length: 4",
           "Content-Length: 3, 4",
           "Content-Length: +3",
           "Content-Length: 0x3",
           "Content-Length: 3 3",
           "Content-Length:",
           "Content-Length: 99999999999999999999999",
           "Foo: bar\nContent-Length: 3",
           "Foo: \rContent-Length: 3",
       }) {
    EXPECT_EQ(StatusOf(fmt::format("{}{}\r\n\r\n", kPost, fields)), 400) << fields;
  }
  EXPECT_EQ(StatusOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400);
  const std::string chunked = std::string(kPost) + "Transfer-Encoding: chunked\r\n\r\n";
  for (const char* body :
       {"3\nabc\r\n", "3\r\nabcd\r\n\r\n", "-3\r\n", "g\r\n", "3 \r\nabc", "0x3\r\nabc\r\n\r\n",
        "\r\n", "fffffffffffffffff\r\n", "3;\x01\r\nabc", "0\r\nContent-Length: 3\r\n\r\n",
        "0\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\nno colon\r\n\r\n"}) {
    EXPECT_NE(StatusOf(chunked + body), 0) << body;
  }
}

TEST(RequestParserTest, WantsExactlyOneHost) {
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http://a/ HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET http://user@a/ HTTP/1.1\r\nHost: a\r\n\r\n"), 400);
  EXPECT_EQ(StatusOf("GET / HTTP/1.0\r\n\r\n"), 0);
  Feeder feeder;
  ASSERT_EQ(feeder.Put("GET http://Real:1/p HTTP/1.1\r\nHost: other\r\n\r\n"), State::kDone);
  EXPECT_EQ(feeder.parser.request().host, "real");
}

TEST(RequestParserTest, TrailersChangeNothing) {
  Feeder feeder;
  ASSERT_EQ(feeder.Put(std::string(kPost) +
                       "Transfer-Encoding: chunked\r\n\r\n0\r\nConnection: close\r\nHost: y\r\n"
                       "Authorization: Bearer k\r\n\r\n"),
            State::kDone)
      << feeder.parser.error().message;
  EXPECT_TRUE(feeder.parser.keep_alive());
  EXPECT_EQ(feeder.parser.request().host, "x");
  EXPECT_EQ(feeder.parser.request().Header("authorization"), "");
}

TEST(RequestParserTest, BoundsWhatIsNotYetTaken) {
  const std::string chunked = std::string(kPost) + "Transfer-Encoding: chunked\r\n\r\n";
  const std::string endless(1 << 20, 'a');
  std::string fields;
  while (fields.size() < (1 << 20)) fields += "a: b\r\n";
  const std::string zeros(1 << 20, '0');
  for (const std::string& bytes :
       {fmt::format("{}1;{}", chunked, endless), fmt::format("{}0;{}", chunked, endless),
        fmt::format("{}0\r\n{}", chunked, fields), fmt::format("{}{}", chunked, zeros),
        fmt::format("{}0\r\na: {}", chunked, endless), fmt::format("{}a: {}", kPost, endless)}) {
    Feeder feeder;
    EXPECT_EQ(feeder.Put(bytes, 1000), State::kRefused);
    EXPECT_EQ(feeder.parser.error().status, 431) << feeder.parser.error().message;
    EXPECT_LE(feeder.most_left, HttpLimits().header_bytes + 1000);
  }
  EXPECT_EQ(StatusOf("GET /" + endless), 414);
  EXPECT_EQ(StatusOf(endless), 414);
  std::string empty_lines;
  while (empty_lines.size() < (1 << 20)) empty_lines += "\r\n";
  Feeder feeder;
  EXPECT_EQ(feeder.Put(empty_lines, 1000), State::kRefused);
}

TEST(RequestParserTest, BoundsAHeaderThatComesFieldByField) {
  Feeder feeder;
  feeder.Put(kPost);
  const std::string field = "a: " + std::string(1000, 'a') + "\r\n";
  for (int i = 0; i < 20; ++i) feeder.Put(field);
  EXPECT_EQ(feeder.parser.error().status, 431);
}

TEST(RequestParserTest, BoundsTheFramingOfAllChunksTogether) {
  HttpLimits limits;
  limits.chunk_framing_bytes = 100;
  std::string bytes = std::string(kPost) + "Transfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 10; ++i) bytes += "1;ext=12345\r\nx\r\n";
  EXPECT_EQ(StatusOf(bytes + "0\r\n\r\n", limits), 413);
  limits.chunk_framing_bytes = 200;
  EXPECT_EQ(StatusOf(bytes + "0\r\n\r\n", limits), 0);
}

TEST(RequestParserTest, SkipsEmptyLinesBeforeARequest) {
  for (const size_t piece : {1, 3, 100}) {
    Feeder feeder;
    EXPECT_EQ(feeder.Put("\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", piece), State::kDone);
  }
  EXPECT_EQ(StatusOf("\n\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), 400);
}

TEST(RequestParserTest, KnowsWhenTheConnectionStays) {
  const auto keeps = [](std::string_view version, std::string_view fields) {
    Feeder feeder;
    feeder.Put(fmt::format("GET / HTTP/{}\r\nHost: x\r\n{}\r\n", version, fields));
    EXPECT_EQ(feeder.parser.state(), State::kDone);
    return feeder.parser.keep_alive();
  };
  EXPECT_TRUE(keeps("1.1", ""));
  EXPECT_TRUE(keeps("1.1", "Connection: keep-alive\r\n"));
  EXPECT_FALSE(keeps("1.1", "Connection: Close\r\n"));
  EXPECT_FALSE(keeps("1.1", "Connection: foo, close\r\n"));
  EXPECT_FALSE(keeps("1.0", ""));
  EXPECT_TRUE(keeps("1.0", "Connection: Keep-Alive\r\n"));
}

TEST(RequestParserTest, ExpectsContinueInHttp11Alone) {
  const auto expects = [](std::string_view version, std::string_view value) {
    RequestParser parser({});
    parser.Put(fmt::format("POST / HTTP/{}\r\nHost: x\r\nContent-Length: 1\r\nExpect: {}\r\n\r\n",
                           version, value));
    return parser.expects_continue();
  };
  EXPECT_TRUE(expects("1.1", "100-Continue"));
  EXPECT_FALSE(expects("1.0", "100-continue"));
  EXPECT_FALSE(expects("1.1", "something"));
}

TEST(RequestParserTest, RefusesADeclaredBodyBeforeItComes) {
  Feeder feeder;
  EXPECT_EQ(feeder.Put(std::string(kPost) + "Content-Length: 100001\r\n\r\n"), State::kRefused);
  EXPECT_EQ(feeder.parser.error().status, 413);
}

}  // namespace
}  // namespace tandem::serve
