#include "sources/s3_client.h"

#include <fmt/format.h>

#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

// SHA-256 of no bytes: S3 wants that of the body in each signed request.
constexpr std::string_view kNoBody =
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

}  // namespace

S3Client::S3Client(std::string bucket, const SourceOptions& options)
    : options_(options),
      bucket_(std::move(bucket)),
      credentials_(options),
      session_(options.certificates),
      region_(credentials_.Region()) {
  if (region_.empty()) region_ = "us-east-1";
}

// Amazon's servers know a bucket by its host name. A dot in it does not fit their certificate, and
// other servers rarely have names for buckets.
std::string S3Client::Base() const {
  if (!options_.s3.endpoint.empty()) return options_.s3.endpoint + "/" + bucket_ + "/";
  const std::string domain = region_.starts_with("cn-") ? "amazonaws.com.cn" : "amazonaws.com";
  if (bucket_.find('.') != std::string::npos) {
    return fmt::format("https://s3.{}.{}/{}/", region_, domain, bucket_);
  }
  return fmt::format("https://{}.s3.{}.{}/", bucket_, region_, domain);
}

Result<HttpRequest> S3Client::MakeRequest(const std::string& path_and_query) {
  HttpRequest request{
      .url = Base() + path_and_query, .follow_redirects = false, .stall = options_.stall};
  TANDEM_ASSIGN_OR_RETURN(std::optional<AwsSignature> signature, credentials_.Get());
  if (signature) {
    signature->region = region_;
    request.signature = std::move(signature);
    request.headers.emplace_back(kNoBody);
  }
  return request;
}

Result<HttpResponse> S3Client::Send(const std::string& path_and_query, const std::string& method,
                                    const std::vector<std::string>& headers) {
  for (bool moved = false;; moved = true) {
    TANDEM_ASSIGN_OR_RETURN(HttpRequest request, MakeRequest(path_and_query));
    request.method = method;
    request.headers.insert(request.headers.end(), headers.begin(), headers.end());
    is_signed_ = request.signature.has_value();
    TANDEM_ASSIGN_OR_RETURN(HttpResponse response,
                            SendPatiently(session_, request, options_.retry, options_.check));
    // Whoever asks in the wrong region is told the right one.
    const std::string region(response.Header("x-amz-bucket-region"));
    const bool elsewhere = !response.ok() && !region.empty() && region != region_ && !moved;
    if (!elsewhere) return response;
    LogInfo("the bucket {} is in {}", bucket_, region);
    region_ = region;
  }
}

Result<std::vector<S3Object>> S3Client::List(std::string_view prefix) {
  constexpr size_t kMaxObjects = 100'000;
  std::vector<S3Object> objects;
  std::string token;
  do {
    // In the order of their names, as the signature has them.
    const std::string query = fmt::format(
        "?{}encoding-type=url&list-type=2&max-keys=1000&prefix={}",
        token.empty() ? "" : "continuation-token=" + UrlEncode(token) + "&", UrlEncode(prefix));
    TANDEM_ASSIGN_OR_RETURN(const HttpResponse response, Send(query, "GET", {}));
    if (!response.ok()) return Explain(response);
    TANDEM_ASSIGN_OR_RETURN(S3Page page, ReadS3Page(response.body));
    objects.insert(objects.end(), page.objects.begin(), page.objects.end());
    if (objects.size() > kMaxObjects) {
      return InvalidArgument(
          fmt::format("more than {} objects are there: name the folder of one model", kMaxObjects));
    }
    token = std::move(page.next);
  } while (!token.empty());
  return objects;
}

Result<HttpResponse> S3Client::Head(const std::string& key) {
  TANDEM_ASSIGN_OR_RETURN(HttpResponse response,
                          Send(UrlEncode(key, "/"), "HEAD", {"x-amz-checksum-mode: ENABLED"}));
  if (!response.ok()) return Explain(response).Annotate(key);
  return response;
}

Result<HttpRequest> S3Client::RequestFor(const std::string& key, const std::string& etag) {
  TANDEM_ASSIGN_OR_RETURN(HttpRequest request, MakeRequest(UrlEncode(key, "/")));
  if (!etag.empty()) request.headers.push_back(fmt::format("If-Match: \"{}\"", etag));
  return request;
}

Status S3Client::Explain(const HttpResponse& response) const {
  const std::string said = DescribeS3Error(response);
  switch (response.status) {
    case 400:  // a token that has expired, say
      return FailedPrecondition(fmt::format("{} (bucket {})", said, bucket_));
    case 401:
    case 403:
      return {
          Code::kUnauthenticated,
          is_signed_
              ? fmt::format("{}: the credentials may not read the bucket {}", said, bucket_)
              : fmt::format("{}: there are no credentials, and the bucket {} is not public; set "
                            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine "
                            "or container a role",
                            said, bucket_)};
    case 404:
      return NotFound(fmt::format("{} (bucket {})", said, bucket_));
    case 412:
      return DataLoss("it has changed while it was downloaded; start again");
    default:
      return Unavailable(fmt::format("{} (bucket {}, status {})", said, bucket_, response.status));
  }
}

}  // namespace tandem
