// S3Client: requests to one bucket, signed, in the region where it is.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "sources/aws_credentials.h"
#include "sources/http.h"
#include "sources/model_source.h"
#include "sources/s3_listing.h"

namespace tandem {

class S3Client {
 public:
  // `options` outlives it.
  S3Client(std::string bucket, const SourceOptions& options);

  // All objects whose keys begin so, in the order of their keys. One thread.
  Result<std::vector<S3Object>> List(std::string_view prefix);
  // The headers of an object, with its checksums. One thread.
  Result<HttpResponse> Head(const std::string& key);
  // A request for an object, of this version only. Any thread.
  Result<HttpRequest> RequestFor(const std::string& key, const std::string& etag);

  Status Explain(const HttpResponse& response) const;

 private:
  Result<HttpRequest> MakeRequest(const std::string& path_and_query);
  Result<HttpResponse> Send(const std::string& path_and_query, const std::string& method,
                            const std::vector<std::string>& headers);
  std::string Base() const;

  const SourceOptions& options_;
  const std::string bucket_;
  AwsCredentials credentials_;
  HttpSession session_;
  std::string region_;
  bool is_signed_ = false;  // by the last request of List or Head
};

}  // namespace tandem
