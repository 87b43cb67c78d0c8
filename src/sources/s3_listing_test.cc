#include "sources/s3_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(S3ListingTest, ReadsAddresses) {
  const auto folder = ReadS3Address("s3://my-bucket/a/b/");
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->bucket, "my-bucket");
  EXPECT_EQ(folder->key, "a/b/");
  EXPECT_EQ(ReadS3Address("s3://my-bucket")->key, "");
  for (const char* text : {"s3://", "s3:///x", "s3://a b/x", "s3://x@evil.com/y", "s3://ab/x",
                           "https://bucket/x", "s3://bucket/a\nb"}) {
    EXPECT_EQ(ReadS3Address(text).status().code(), Code::kInvalidArgument) << text;
  }
}

TEST(S3ListingTest, ReadsPages) {
  const auto page = ReadS3Page(
      R"(<?xml version="1.0"?><ListBucketResult xmlns="x"><IsTruncated>true</IsTruncated>
      <NextContinuationToken>a&amp;b==</NextContinuationToken>
      <Contents><Key>m/caf%C3%A9+1.json</Key><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag>
      <Size>12</Size></Contents>
      <Contents><Key>m/x</Key><ETag>"5-3"</ETag><Size>99999999999</Size></Contents>
      </ListBucketResult>)");
  ASSERT_TRUE(page.ok()) << page.status().message();
  EXPECT_EQ(page->next, "a&b==");
  ASSERT_EQ(page->objects.size(), 2u);
  EXPECT_EQ(page->objects[0].key, "m/caf\u00e9 1.json");
  EXPECT_EQ(page->objects[0].etag, "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(page->objects[1].bytes, 99999999999);
  EXPECT_EQ(page->objects[1].etag, "5-3");
}

TEST(S3ListingTest, RefusesOtherAnswers) {
  for (const char* text :
       {"", "<html></html>", "<ListBucketResult><Contents><Key>x</Key></Contents>",
        "<ListBucketResult><Contents><Key></Key><Size>1</Size></Contents>",
        "<ListBucketResult><Contents><Key>x</Key><Size>-1</Size></Contents>"}) {
    EXPECT_EQ(ReadS3Page(text).status().code(), Code::kDataLoss) << text;
  }
  EXPECT_TRUE(
      ReadS3Page("<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>")->objects.empty());
}

DigestKind KindOf(const HttpResponse& head) {
  const auto digest = DigestOfS3Object(head);
  EXPECT_TRUE(digest.has_value());
  return digest ? digest->kind : DigestKind::kSha1;
}

TEST(S3ListingTest, KnowsWhichChecksumsAreOfTheWholeObject) {
  const std::string md5(32, 'a');
  const auto head = [](std::multimap<std::string, std::string> headers) {
    return HttpResponse{.status = 200, .headers = std::move(headers), .body = {}};
  };
  EXPECT_EQ(KindOf(head({{"etag", "\"" + md5 + "\""}})), DigestKind::kMd5);
  EXPECT_EQ(KindOf(head({{"etag", "\"" + md5 + "\""}, {"x-amz-checksum-crc32c", "4waSgw=="}})),
            DigestKind::kCrc32C);
  EXPECT_EQ(DigestOfS3Object(head({{"x-amz-checksum-crc64nvme", "rosUhgp5mIg="}}))->hex,
            "ae8b14860a799888");
  // Of parts, and encrypted.
  EXPECT_FALSE(DigestOfS3Object(head({{"etag", "\"" + md5 + "-4\""},
                                      {"x-amz-checksum-sha256", "abcd-4"},
                                      {"x-amz-checksum-type", "COMPOSITE"}})));
  EXPECT_FALSE(DigestOfS3Object(
      head({{"etag", "\"" + md5 + "\""}, {"x-amz-server-side-encryption", "aws:kms"}})));
}

}  // namespace
}  // namespace tandem
