#include "sources/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/file.h"
#include "sources/testing/http_server.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::HttpServer;
using testing::ServedReply;
using testing::ServedRequest;

// 100 kB that are the same nowhere.
std::string MadeUpFile() {
  std::string text;
  uint32_t state = 1;
  while (text.size() < 100'000) {
    state = state * 1664525 + 1013904223;
    text += static_cast<char>(state >> 24);
  }
  return text;
}

class DownloadTest : public ::testing::Test {
 protected:
  DownloadTest()
      : folder_(fs::temp_directory_path() / ("download_test." + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    options_.retry = std::chrono::milliseconds(1);
    options_.stall = std::chrono::seconds(1);
    options_.part_bytes = 16'000;
  }
  ~DownloadTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  RemoteFile Remote(const std::string& url, const std::string& name = "weights") const {
    return {.name = name,
            .destination = folder_ / name,
            .bytes = static_cast<int64_t>(file_.size()),
            .digest = ExpectedDigest{DigestKind::kSha256, Sha256Hex(file_)},
            .identity = Sha256Hex(file_),
            .request = [url]() -> Result<HttpRequest> {
              return HttpRequest{.url = url, .secrets = {"Authorization: Bearer s3cret"}};
            }};
  }
  Status Download(const RemoteFile& file) const {
    return DownloadFiles(
        "a model", {&file, 1},
        [](const HttpResponse& response) {
          return NotFound("refused with " + std::to_string(response.status));
        },
        options_);
  }
  void ExpectWhole() const {
    const auto text = ReadTextFile(folder_ / "weights");
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_TRUE(*text == file_);
    EXPECT_FALSE(NameExists(folder_ / "weights.partial"));
    EXPECT_FALSE(NameExists(folder_ / "weights.parts"));
  }
  void ExpectNone() const { EXPECT_FALSE(NameExists(folder_ / "weights")); }

  const std::string file_ = MadeUpFile();
  const fs::path folder_;
  SourceOptions options_;
};

TEST_F(DownloadTest, PartsOfAFileComeInParallelAndMakeItUp) {
  const HttpServer server(
      [&](const ServedRequest& request) { return HttpServer::Ranged(request, file_); });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
  EXPECT_EQ(server.Requests().size(), 7u);
}

TEST_F(DownloadTest, ACutTransferGoesOnWhereItEnded) {
  options_.part_bytes = 1 << 20;
  for (int percent = 0; percent < 100; percent += 10) {
    SCOPED_TRACE(percent);
    fs::remove(folder_ / "weights");
    const auto cut = static_cast<int64_t>(file_.size()) * percent / 100;
    std::atomic<int> calls{0};
    const HttpServer server([&](const ServedRequest& request) {
      ServedReply reply = HttpServer::Ranged(request, file_);
      if (calls++ == 0) reply.cut_after = cut;
      return reply;
    });
    ASSERT_TRUE(Download(Remote(server.Url())).ok());
    ExpectWhole();
    ASSERT_EQ(server.Requests().size(), 2u);
    EXPECT_EQ(server.Requests()[1].Header("range"),
              "bytes=" + std::to_string(cut) + "-" + std::to_string(file_.size() - 1));
  }
}

TEST_F(DownloadTest, AServerThatCutsEachTenthIsAskedUntilAllIsThere) {
  options_.part_bytes = 1 << 20;
  const HttpServer server([&](const ServedRequest& request) {
    ServedReply reply = HttpServer::Ranged(request, file_);
    reply.cut_after = static_cast<int64_t>(file_.size() / 10);
    return reply;
  });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
  EXPECT_EQ(server.Requests().size(), 10u);
}

TEST_F(DownloadTest, ALaterCallFetchesOnlyWhatIsMissing) {
  options_.connections = 1;
  const auto serve = [&](bool fails) {
    return [this, fails](const ServedRequest& request) -> ServedReply {
      if (fails && request.Header("range").starts_with("bytes=48000")) return {.status = 404};
      return HttpServer::Ranged(request, file_);
    };
  };
  {
    const HttpServer server(serve(true));
    const Status status = Download(Remote(server.Url()));
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_EQ(status.message(), "weights: refused with 404");
    ExpectNone();
  }
  const HttpServer server(serve(false));
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
  std::vector<std::string> ranges;
  for (const ServedRequest& request : server.Requests()) ranges.push_back(request.Header("range"));
  EXPECT_THAT(ranges, ::testing::ElementsAre("bytes=48000-63999", "bytes=64000-79999",
                                             "bytes=80000-95999", "bytes=96000-99999"));
}

TEST_F(DownloadTest, OfAnotherVersionNothingIsKept) {
  {
    const HttpServer server([&](const ServedRequest& request) -> ServedReply {
      if (!request.Header("range").starts_with("bytes=0-")) return {.status = 404};
      return HttpServer::Ranged(request, file_);
    });
    options_.connections = 1;
    RemoteFile old = Remote(server.Url());
    old.identity = "another";
    EXPECT_FALSE(Download(old).ok());
  }
  const HttpServer server(
      [&](const ServedRequest& request) { return HttpServer::Ranged(request, file_); });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  EXPECT_EQ(server.Requests().size(), 7u);
  ExpectWhole();
}

TEST_F(DownloadTest, AWrongChecksumLeavesNothing) {
  std::string other = file_;
  other[77'777] ^= 1;
  const HttpServer server(
      [&](const ServedRequest& request) { return HttpServer::Ranged(request, other); });
  const Status status = Download(Remote(server.Url()));
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("weights: its SHA-256 is"));
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DownloadTest, AFileOfAnotherLengthIsRefused) {
  const HttpServer server(
      [&](const ServedRequest& request) { return HttpServer::Ranged(request, file_ + "more"); });
  EXPECT_EQ(Download(Remote(server.Url())).code(), Code::kDataLoss);
  ExpectNone();
}

TEST_F(DownloadTest, AServerWithoutRangesIsReadToTheEnd) {
  const HttpServer server([&](const ServedRequest&) -> ServedReply { return {.body = file_}; });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
}

TEST_F(DownloadTest, AServerWithoutRangesSendsItAllOnlyOnceToTheEnd) {
  for (const int connections : {1, 4}) {
    SCOPED_TRACE(connections);
    fs::remove(folder_ / "weights");
    options_.connections = connections;
    std::atomic<int> calls{0};
    const HttpServer server([&](const ServedRequest&) -> ServedReply {
      // A transfer that is given up at its first bytes need not send more. The one that follows is
      // cut in the middle.
      const int call = calls++;
      if (call < connections) return {.body = file_, .cut_after = 1000};
      return {.body = file_, .cut_after = call == connections ? int64_t{50'000} : int64_t{-1}};
    });
    const Status status = Download(Remote(server.Url()));
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectWhole();
    EXPECT_LE(server.Requests().size(), static_cast<size_t>(connections) + 2);
    EXPECT_EQ(server.Requests().back().Header("range"), "bytes=50000-99999");
  }
}

TEST_F(DownloadTest, PartsThatCameInRangesAreKeptWhereOthersDoNot) {
  std::atomic<int> whole{0};
  const HttpServer server([&](const ServedRequest& request) -> ServedReply {
    if (request.Header("range").starts_with("bytes=32000-")) {
      ++whole;
      return {.body = file_};
    }
    return HttpServer::Ranged(request, file_);
  });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
  EXPECT_LE(whole, 2);
}

TEST_F(DownloadTest, TheServerSaysHowLongToWait) {
  options_.part_bytes = 1 << 20;
  std::atomic<int> calls{0};
  const HttpServer server([&](const ServedRequest& request) -> ServedReply {
    if (calls++ == 0) return {.status = 429, .headers = {"Retry-After: 1"}};
    return HttpServer::Ranged(request, file_);
  });
  const auto begun = std::chrono::steady_clock::now();
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  ExpectWhole();
}

TEST_F(DownloadTest, AServerThatStaysDownIsGivenUp) {
  const HttpServer server([](const ServedRequest&) -> ServedReply { return {.status = 503}; });
  options_.connections = 1;
  const Status status = Download(Remote(server.Url()));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("the server answers 503, 6 times in a row"));
  EXPECT_EQ(server.Requests().size(), static_cast<size_t>(Backoff::kMaxFailures));
  ExpectNone();
}

TEST_F(DownloadTest, AHostWithoutAnAddressIsGivenUp) {
  // Longer than names may be: nobody is asked for it.
  const Status status = Download(Remote("http://" + std::string(64, 'x') + "/"));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("Could not resolve host"));
}

TEST_F(DownloadTest, ABodyThatStopsIsAskedForAgain) {
  options_.part_bytes = 1 << 20;
  std::atomic<int> calls{0};
  const HttpServer server([&](const ServedRequest& request) {
    ServedReply reply = HttpServer::Ranged(request, file_);
    if (calls++ == 0) reply.pause_before_end = std::chrono::seconds(60);
    return reply;
  });
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
  ASSERT_EQ(server.Requests().size(), 2u);
  EXPECT_EQ(server.Requests()[1].Header("range"), "bytes=99999-99999");
}

TEST_F(DownloadTest, WhoeverAskedMayEndItAndGoOnLater) {
  std::atomic<bool> is_slow{true};
  const HttpServer server([&](const ServedRequest& request) {
    ServedReply reply = HttpServer::Ranged(request, file_);
    if (is_slow) reply.pause_before_end = std::chrono::seconds(60);
    return reply;
  });
  options_.stall = std::chrono::seconds(50);
  options_.check = [] { return Unavailable("the server is shutting down"); };
  EXPECT_EQ(Download(Remote(server.Url())).message(), "the server is shutting down");
  ExpectNone();
  options_.check = {};
  is_slow = false;
  ASSERT_TRUE(Download(Remote(server.Url())).ok());
  ExpectWhole();
}

TEST_F(DownloadTest, AnAddressThatCannotBeAskedIsNamed) {
  for (const char* url : {"ftp://127.0.0.1/x", "http://[::1", "127.0.0.1 x"}) {
    const Status status = Download(Remote(url));
    EXPECT_EQ(status.code(), Code::kFailedPrecondition) << url << ": " << status.message();
  }
}

TEST_F(DownloadTest, ARedirectToAnotherHostCarriesNoCredentials) {
  const HttpServer storage(
      [&](const ServedRequest& request) { return HttpServer::Ranged(request, file_); });
  const HttpServer hub([&](const ServedRequest& request) -> ServedReply {
    if (request.target == "/old") return {.status = 307, .headers = {"Location: /new"}};
    return {.status = 302, .headers = {"Location: " + storage.Url() + "/blob?sig=1"}};
  });
  options_.part_bytes = 1 << 20;
  ASSERT_TRUE(Download(Remote(hub.Url() + "/old")).ok());
  ExpectWhole();
  ASSERT_EQ(hub.Requests().size(), 2u);
  for (const ServedRequest& request : hub.Requests()) {
    EXPECT_EQ(request.Header("authorization"), "Bearer s3cret");
  }
  ASSERT_EQ(storage.Requests().size(), 1u);
  EXPECT_EQ(storage.Requests()[0].target, "/blob?sig=1");
  EXPECT_EQ(storage.Requests()[0].Header("authorization"), "");
  EXPECT_EQ(storage.Requests()[0].Header("range"), "bytes=0-99999");
}

TEST_F(DownloadTest, AnEmptyFileIsMade) {
  const HttpServer server([](const ServedRequest&) -> ServedReply { return {.status = 500}; });
  RemoteFile empty = Remote(server.Url());
  empty.bytes = 0;
  empty.digest = ExpectedDigest{DigestKind::kSha256, Sha256Hex("")};
  ASSERT_TRUE(Download(empty).ok());
  EXPECT_EQ(fs::file_size(folder_ / "weights"), 0u);
  EXPECT_TRUE(server.Requests().empty());
}

TEST_F(DownloadTest, ASizeThatNoFileHasIsRefused) {
  for (const int64_t bytes : {int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    RemoteFile large = Remote("http://127.0.0.1:1");
    large.bytes = bytes;
    EXPECT_EQ(Download(large).code(), Code::kDataLoss);
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(DownloadTest, MoreThanTheDiskHoldsIsRefusedBeforeAnythingIsFetched) {
  const HttpServer server([](const ServedRequest&) -> ServedReply { return {.status = 500}; });
  RemoteFile large = Remote(server.Url());
  large.bytes = int64_t{1} << 43;  // the files with holes fit
  options_.part_bytes = int64_t{1} << 40;
  const Status status = Download(large);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
  EXPECT_THAT(status.message(), HasSubstr("16.0 MiB stay free"));
  EXPECT_THAT(status.message(), HasSubstr("--download_dir"));
  EXPECT_TRUE(server.Requests().empty());
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tandem
