#include "sources/hub_listing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kSha256(64, 'a');

TEST(HubListingTest, ReadsFilesWithTheirChecksums) {
  const auto listing = ReadHubListing(fmt::format(
      R"({{"sha": "{}", "siblings": [
        {{"rfilename": "config.json", "size": 12, "blobId": "{}"}},
        {{"rfilename": "model.safetensors", "size": 130, "blobId": "{}",
          "lfs": {{"sha256": "{}", "size": 99999999999, "pointerSize": 130}}}},
        {{"rfilename": "plain.json"}},
        {{"rfilename": "../../outside"}}, {{"rfilename": "/etc/passwd"}}, 3]}})",
      kCommit, kCommit, kCommit, kSha256));
  ASSERT_TRUE(listing.ok()) << listing.status().message();
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 3u);
  EXPECT_EQ(listing->files[0].etag, kCommit);
  EXPECT_EQ(listing->files[0].bytes, 12);
  EXPECT_EQ(listing->files[1].etag, kSha256);
  EXPECT_EQ(listing->files[1].bytes, 99999999999);
  EXPECT_EQ(listing->files[2].etag, "");
  EXPECT_EQ(listing->files[2].bytes, -1);
}

TEST(HubListingTest, RefusesAnswersOfOtherServers) {
  for (const char* text :
       {"", "<html>", "[]", R"({"sha": "main", "siblings": []})", R"({"sha": "../../../x"})",
        R"({"sha": "0123456789abcdef0123456789abcdef01234567"})"}) {
    EXPECT_EQ(ReadHubListing(text).status().code(), Code::kDataLoss) << text;
  }
}

TEST(HubListingTest, HeadersTellTheRest) {
  HubFile small{.name = "config.json", .etag = {}};
  TakeFileHeaders({.status = 200,
                   .headers = {{"etag", fmt::format("W/\"{}\"", kCommit)}, {"content-length", "7"}},
                   .body = {}},
                  small);
  EXPECT_EQ(small.etag, kCommit);
  EXPECT_EQ(small.bytes, 7);
  HubFile large{.name = "model.safetensors", .etag = {}};
  TakeFileHeaders({.status = 302,
                   .headers = {{"etag", "\"other\""},
                               {"content-length", "1350"},
                               {"x-linked-etag", fmt::format("\"{}\"", kSha256)},
                               {"x-linked-size", "5000000000"}},
                   .body = {}},
                  large);
  EXPECT_EQ(large.etag, kSha256);
  EXPECT_EQ(large.bytes, 5'000'000'000);
  HubFile hostile{.name = "x", .etag = {}};
  TakeFileHeaders({.status = 200, .headers = {{"etag", "\"../../x\""}}, .body = {}}, hostile);
  EXPECT_EQ(hostile.etag, "");
}

TEST(HubListingTest, SaysWhatToDo) {
  const HubQuestion question{
      .id = "o/m", .revision = "v2", .endpoint = "https://hub", .with_token = false};
  const HttpResponse unknown{.status = 401, .headers = {}, .body = {}};
  const Status anonymous = ExplainHubStatus(question, unknown);
  EXPECT_EQ(anonymous.code(), Code::kUnauthenticated);
  EXPECT_THAT(anonymous.message(), AllOf(HasSubstr("o/m is gated or private"),
                                         HasSubstr("HF_TOKEN"), HasSubstr("https://hub/o/m")));
  const HttpResponse gated{.status = 403, .headers = {{"x-error-code", "GatedRepo"}}, .body = {}};
  EXPECT_THAT(ExplainHubStatus(question, gated).message(),
              HasSubstr("o/m is gated: accept its terms"));
  const HttpResponse revision{
      .status = 404, .headers = {{"x-error-code", "RevisionNotFound"}}, .body = {}};
  EXPECT_THAT(ExplainHubStatus(question, revision).message(), HasSubstr("has no revision v2"));
  const HttpResponse absent{.status = 404, .headers = {}, .body = {}};
  EXPECT_THAT(ExplainHubStatus(question, absent).message(), HasSubstr("no folder o/m"));
  EXPECT_EQ(ExplainHubStatus(question, absent).code(), Code::kNotFound);
}

}  // namespace
}  // namespace tandem
