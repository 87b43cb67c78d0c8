// Runs the transcripts of tests/protocol/: each file is a list of exchanges, sent to a whole server
// over a scripted engine (testing/fake_engine.h lists its answers). The format is in
// tests/protocol/README.md.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/testing/source_dir.h"
#include "serve/testing/test_server.h"

namespace tandem::serve {
namespace {

struct ExpectedHeader {
  std::string name, value;
};

struct Exchange {
  std::string name;
  std::string method, path;
  HttpHeaders headers;
  std::string body;
  int status = 0;
  std::vector<ExpectedHeader> expected_headers;
  std::string expected_body;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

class TranscriptReader {
 public:
  explicit TranscriptReader(const std::string& text) : lines_(Lines(text)) {}

  std::vector<Exchange> Read() {
    std::vector<Exchange> exchanges;
    while (!AtEnd() && !lines_[at_].starts_with("=== ")) ++at_;
    while (!AtEnd()) exchanges.push_back(ReadExchange());
    return exchanges;
  }

 private:
  bool AtEnd() const { return at_ == lines_.size(); }
  bool AtMark() const { return AtEnd() || lines_[at_].starts_with("=== ") || lines_[at_] == "---"; }

  Exchange ReadExchange() {
    Exchange exchange;
    exchange.name = lines_[at_++].substr(4);
    const std::string& request = lines_[at_++];
    const size_t space = request.find(' ');
    exchange.method = request.substr(0, space);
    exchange.path = request.substr(space + 1);
    ReadHeaders([&](const std::string& name, const std::string& value) {
      exchange.headers.emplace_back(name, value);
    });
    exchange.body = ReadBody();
    TANDEM_CHECK(!AtEnd() && lines_[at_] == "---", "a transcript needs --- before the response");
    exchange.status = std::stoi(lines_[++at_]);
    ++at_;
    ReadHeaders([&](const std::string& name, const std::string& value) {
      exchange.expected_headers.push_back({name, value});
    });
    exchange.expected_body = ReadBody();
    return exchange;
  }

  template <typename Add>
  void ReadHeaders(Add&& add) {
    for (; !AtMark() && !lines_[at_].empty(); ++at_) {
      const size_t colon = lines_[at_].find(": ");
      add(lines_[at_].substr(0, colon), lines_[at_].substr(colon + 2));
    }
    if (!AtMark()) ++at_;
  }

  std::string ReadBody() {
    std::string body;
    for (; !AtMark(); ++at_) body += lines_[at_] + "\n";
    while (body.ends_with('\n')) body.pop_back();
    return body;
  }

  const std::vector<std::string> lines_;
  size_t at_ = 0;
};

// Whether `text` matches `pattern`, in which each {{*}} stands for any text.
bool Matches(std::string_view pattern, std::string_view text) {
  constexpr std::string_view kAnything = "{{*}}";
  const size_t wild = pattern.find(kAnything);
  if (wild == std::string_view::npos) return pattern == text;
  if (text.substr(0, wild) != pattern.substr(0, wild)) return false;
  const std::string_view rest = pattern.substr(wild + kAnything.size());
  for (size_t skip = wild; skip <= text.size(); ++skip) {
    if (Matches(rest, text.substr(skip))) return true;
  }
  return false;
}

void Check(const Exchange& exchange, HttpClient& client) {
  SCOPED_TRACE(exchange.name);
  const Result<ClientResponse> response =
      client.Send(exchange.method, exchange.path, exchange.body, exchange.headers);
  ASSERT_TRUE(response.ok()) << response.status().message();
  EXPECT_EQ(response->status, exchange.status) << response->body;
  for (const ExpectedHeader& header : exchange.expected_headers) {
    EXPECT_TRUE(Matches(header.value, response->Header(header.name)))
        << header.name << ": " << response->Header(header.name);
  }
  std::string body = response->body;
  while (body.ends_with('\n')) body.pop_back();
  EXPECT_TRUE(Matches(exchange.expected_body, body))
      << "expected: " << exchange.expected_body << "\n     got: " << body;
}

class ProtocolTest : public testing::TestWithParam<std::string> {};

TEST_P(ProtocolTest, AnswersAsWritten) {
  const std::filesystem::path path = SourceDir() / "tests/protocol" / (GetParam() + ".txt");
  const Result<std::string> text = ReadTextFile(path);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const std::vector<Exchange> exchanges = TranscriptReader(*text).Read();
  ASSERT_FALSE(exchanges.empty());
  TestServer server;
  HttpClient client = server.Client();
  for (const Exchange& exchange : exchanges) Check(exchange, client);
  EXPECT_TRUE(Eventually([&] { return server.engine.open_sequences() == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Transcripts, ProtocolTest,
                         testing::Values("kserve_generate", "kserve_infer", "kserve_errors",
                                         "kserve_stream", "llgtrt", "openai_chat",
                                         "openai_completions", "openai_errors", "openai_responses",
                                         "openai_stream", "routes"),
                         [](const auto& param) { return param.param; });

}  // namespace
}  // namespace tandem::serve
