// Fuzz target: any bytes as what hubs, S3 servers and services answer, and as files beside models.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "sources/aws_credentials.h"
#include "sources/hub_listing.h"
#include "sources/model_files.h"
#include "sources/s3_listing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto listing = tandem::ReadHubListing(text); listing.ok()) {
    TANDEM_CHECK(tandem::IsCommit(listing->commit), listing->commit);
    for (const tandem::HubFile& file : listing->files) {
      TANDEM_CHECK(tandem::IsSafeRelativePath(file.name), file.name);
      TANDEM_CHECK(file.etag.empty() || tandem::DigestOfEtag(file.etag).has_value(), file.etag);
    }
  }
  if (const auto page = tandem::ReadS3Page(text); page.ok()) {
    for (const tandem::S3Object& object : page->objects) {
      TANDEM_CHECK(!object.key.empty() && object.bytes >= 0, object.key);
    }
  }
  if (const auto shards = tandem::ShardsOf(text); shards.ok()) {
    for (const std::string& shard : *shards) {
      TANDEM_CHECK(tandem::IsSafeRelativePath(shard) && shard.find('/') == std::string::npos,
                   shard);
    }
  }
  tandem::ReadIniSection(text, "default");
  if (const auto address = tandem::ReadS3Address(text); address.ok()) {
    TANDEM_CHECK(address->bucket.find('/') == std::string::npos, address->bucket);
  }
  return 0;
}
