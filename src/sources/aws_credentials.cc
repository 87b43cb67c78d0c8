#include "sources/aws_credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/file.h"
#include "base/log.h"

namespace tandem {
namespace {

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

std::map<std::string, std::string> SectionOf(const std::filesystem::path& file,
                                             std::string_view name) {
  const Result<std::string> text = ReadTextFile(file, size_t{1} << 20);
  return text.ok() ? ReadIniSection(*text, name) : std::map<std::string, std::string>();
}

// Profiles other than the default one have a word before their name in the config file.
std::string ConfigSection(const std::string& profile) {
  return profile == "default" ? profile : "profile " + profile;
}

std::string TextIn(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// "2026-11-26T03:40:00Z"
std::optional<std::chrono::system_clock::time_point> TimeIn(const std::string& text) {
  std::tm time{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time);
  if (end == nullptr) return std::nullopt;
  constexpr time_t kLatest = 9'000'000'000;  // in 2255, which the clock can still hold
  return std::chrono::system_clock::from_time_t(std::min(::timegm(&time), kLatest));
}

// A token is sent there: only to hosts where nobody else listens.
bool IsTrustedContainerHost(std::string_view url) {
  if (url.starts_with("https://")) return true;
  std::string_view host = AuthorityOf(url);
  if (host.starts_with('[')) {
    host = host.substr(0, host.find(']') + 1);
    return host == "[::1]" || host == "[fd00:ec2::23]";
  }
  host = host.substr(0, host.find(':'));
  const bool is_loopback =
      host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
  return host == "localhost" || is_loopback || host == "169.254.170.2" || host == "169.254.170.23";
}

}  // namespace

std::map<std::string, std::string> ReadIniSection(std::string_view text, std::string_view name) {
  std::map<std::string, std::string> values;
  bool inside = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      inside = Trimmed(line.substr(1, std::max<size_t>(line.find(']'), 1) - 1)) == name;
    } else if (const size_t equals = line.find('='); inside && equals != std::string_view::npos) {
      values[std::string(Trimmed(line.substr(0, equals)))] = Trimmed(line.substr(equals + 1));
    }
  }
  return values;
}

AwsCredentials::AwsCredentials(const SourceOptions& options)
    : options_(options), session_(options.certificates) {}

std::string AwsCredentials::Region() const {
  const S3Access& s3 = options_.s3;
  if (!s3.region.empty()) return s3.region;
  const auto config = SectionOf(s3.config_file, ConfigSection(s3.profile));
  const auto region = config.find("region");
  return region == config.end() ? std::string() : region->second;
}

std::optional<AwsSignature> AwsCredentials::FromFiles() const {
  const S3Access& s3 = options_.s3;
  for (auto& section : {SectionOf(s3.credentials_file, s3.profile),
                        SectionOf(s3.config_file, ConfigSection(s3.profile))}) {
    const auto value = [&](const char* key) {
      const auto found = section.find(key);
      return found == section.end() ? std::string() : found->second;
    };
    AwsSignature signature{.region = {},
                           .access_key_id = value("aws_access_key_id"),
                           .secret_access_key = value("aws_secret_access_key"),
                           .session_token = value("aws_session_token")};
    if (!signature.access_key_id.empty() && !signature.secret_access_key.empty()) return signature;
  }
  return std::nullopt;
}

namespace {

// What both services answer, with different names for the token.
Result<AwsSignature> SignatureIn(const nlohmann::json& json, std::string_view from) {
  AwsSignature signature;
  if (json.is_object()) {
    signature.access_key_id = TextIn(json, "AccessKeyId");
    signature.secret_access_key = TextIn(json, "SecretAccessKey");
    signature.session_token = TextIn(json, "Token");
  }
  if (signature.access_key_id.empty() || signature.secret_access_key.empty()) {
    return FailedPrecondition(fmt::format("{}: its answer holds no credentials", from));
  }
  return signature;
}

}  // namespace

Result<AwsCredentials::Kept> AwsCredentials::FromContainer() {
  const S3Access& s3 = options_.s3;
  if (!IsTrustedContainerHost(s3.container_url)) {
    return InvalidArgument(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI: is neither https nor an address of this machine");
  }
  HttpRequest request{.url = s3.container_url, .use_proxy = false};
  std::string token = s3.container_token;
  if (!s3.container_token_file.empty()) {
    TANDEM_ASSIGN_OR_RETURN(token, ReadTextFile(s3.container_token_file, size_t{64} << 10));
    token = Trimmed(token);
  }
  if (!token.empty()) request.secrets.push_back("Authorization: " + token);
  const MutexLock lock(mutex_);
  TANDEM_ASSIGN_OR_RETURN(const HttpResponse response,
                          SendPatiently(session_, request, options_.retry, options_.check));
  if (!response.ok()) {
    return FailedPrecondition(fmt::format("the container's credentials: {} answers {}",
                                          AuthorityOf(s3.container_url), response.status));
  }
  const auto json = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  TANDEM_ASSIGN_OR_RETURN(AwsSignature signature, SignatureIn(json, "the container's service"));
  return Kept{std::move(signature), TimeIn(TextIn(json, "Expiration"))};
}

Result<AwsCredentials::Kept> AwsCredentials::FromMachine() {
  const std::string& endpoint = options_.s3.metadata_endpoint;
  if (endpoint.empty()) return Kept{};
  HttpRequest request{
      .url = endpoint + "/latest/api/token",
      .method = "PUT",
      .headers = {"X-aws-ec2-metadata-token-ttl-seconds: 21600", "Content-Length: 0"},
      .follow_redirects = false,
      .use_proxy = false,
      .connect = std::chrono::seconds(1),
      .stall = std::chrono::seconds(2)};
  const MutexLock lock(mutex_);
  const Result<HttpResponse> token = session_.Send(request);
  if (!token.ok() || !token->ok()) return Kept{};  // no such machine
  request.method = "GET";
  request.headers = {"X-aws-ec2-metadata-token: " + token->body};
  request.url = endpoint + "/latest/meta-data/iam/security-credentials/";
  TANDEM_ASSIGN_OR_RETURN(const HttpResponse role,
                          SendPatiently(session_, request, options_.retry, options_.check));
  if (!role.ok()) return Kept{};  // a machine without a role
  request.url += std::string(Trimmed(role.body.substr(0, role.body.find('\n'))));
  TANDEM_ASSIGN_OR_RETURN(const HttpResponse response,
                          SendPatiently(session_, request, options_.retry, options_.check));
  const auto json = nlohmann::json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  TANDEM_ASSIGN_OR_RETURN(AwsSignature signature, SignatureIn(json, "the machine's service"));
  return Kept{std::move(signature), TimeIn(TextIn(json, "Expiration"))};
}

Result<AwsCredentials::Kept> AwsCredentials::Find() {
  const S3Access& s3 = options_.s3;
  if (!s3.sign) return Kept{};
  if (!s3.access_key_id.empty() && !s3.secret_access_key.empty()) {
    return Kept{AwsSignature{.region = {},
                             .access_key_id = s3.access_key_id,
                             .secret_access_key = s3.secret_access_key,
                             .session_token = s3.session_token},
                std::nullopt};
  }
  if (auto signature = FromFiles()) return Kept{std::move(signature), std::nullopt};
  if (!s3.container_url.empty()) return FromContainer();
  return FromMachine();
}

Result<std::optional<AwsSignature>> AwsCredentials::Get() {
  constexpr std::chrono::minutes kBefore{5};
  {
    const MutexLock lock(mutex_);
    if (kept_ &&
        (!kept_->expires || *kept_->expires - kBefore > std::chrono::system_clock::now())) {
      return kept_->signature;
    }
  }
  TANDEM_ASSIGN_OR_RETURN(Kept found, Find());
  if (!found.signature) LogInfo("no AWS credentials were found: S3 is asked without");
  const MutexLock lock(mutex_);
  kept_ = found;
  return found.signature;
}

}  // namespace tandem
