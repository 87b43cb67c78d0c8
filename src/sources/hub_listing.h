// What a hub says of a model: the commit that a revision stands for, and its files. Pure functions;
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "sources/digest.h"
#include "sources/http.h"

namespace tandem {

struct HubFile {
  std::string name;
  std::string etag;    // also the name of its blob in the cache; empty: not told
  int64_t bytes = -1;  // -1: not told
};

struct HubListing {
  std::string commit;  // 40 hex digits
  std::vector<HubFile> files;
};

// The body of /api/models/ID/revision/REVISION?blobs=true. Files with names that are not safe to
// join to a folder are left out. DATA_LOSS when it is something else.
Result<HubListing> ReadHubListing(std::string_view json);

// Takes what the headers of a file's address say of it.
void TakeFileHeaders(const HttpResponse& response, HubFile& file);

// By the form of an etag: SHA-256 for large files, git's for others; nothing for any other form.
std::optional<ExpectedDigest> DigestOfEtag(std::string_view etag);

bool IsCommit(std::string_view revision);

struct HubQuestion {
  std::string id;
  std::string revision;
  std::string endpoint;
  bool with_token = false;
};

// Why the hub refuses, and what to do.
Status ExplainHubStatus(const HubQuestion& question, const HttpResponse& response);

}  // namespace tandem
