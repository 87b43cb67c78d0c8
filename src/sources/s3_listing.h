// Addresses of S3 and the answers of its servers. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sources/digest.h"
#include "sources/http.h"

namespace tandem {

struct S3Address {
  std::string bucket;
  std::string key;  // of an object, or what the keys below a folder begin with; may be empty
};

// "s3://bucket/a/b". INVALID_ARGUMENT says what is wrong with it.
Result<S3Address> ReadS3Address(std::string_view text);

struct S3Object {
  std::string key;
  std::string etag;  // without quotes
  int64_t bytes = 0;
};

struct S3Page {
  std::vector<S3Object> objects;
  std::string next;  // the token of the next page; empty: this was the last
};

// The answer to ListObjectsV2 with encoding-type=url. DATA_LOSS when it is something else.
Result<S3Page> ReadS3Page(std::string_view xml);

// The digest of an object by the headers of a HEAD request with x-amz-checksum-mode: a checksum of
// the whole object, else its ETag where that is its MD5; nothing for objects that were written in
// several parts or encrypted, whose ETag is none.
std::optional<ExpectedDigest> DigestOfS3Object(const HttpResponse& head);

// What the server says in its <Error>: "AccessDenied: Access Denied".
std::string DescribeS3Error(const HttpResponse& response);

}  // namespace tandem
