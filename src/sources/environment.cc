// Every variable of the environment that decides where models come from.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "base/cache_folder.h"
#include "base/file.h"
#include "sources/model_source.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// The first of these variables that is set and not empty.
std::string Variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return {};
}

bool IsOn(const char* name) {
  std::string value = Variable({name});
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::toupper(c); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// Containers may have none.
fs::path Home() {
  const std::string home = Variable({"HOME"});
  return home.empty() ? fs::temp_directory_path() : fs::path(home);
}

// A path in which a leading ~ stands for the home folder.
fs::path PathIn(const std::string& text) {
  if (text == "~" || text.starts_with("~/"))
    return Home() / text.substr(std::min<size_t>(2, text.size()));
  return text;
}

fs::path CacheHome() {
  const fs::path named = PathIn(Variable({"XDG_CACHE_HOME"}));
  return named.empty() ? Home() / ".cache" : named;
}

// Up to the first blank: editors leave line ends, and a token becomes part of a header.
std::string TokenOf(const std::string& text) {
  return text.substr(0, text.find_first_of(" \t\r\n"));
}

// Empty when there is no such file.
std::string TokenIn(const fs::path& file) {
  constexpr size_t kLongest = 4096;
  const Result<std::string> text = ReadTextFile(file, kLongest);
  return text.ok() ? TokenOf(*text) : std::string();
}

HubAccess HubFromEnvironment() {
  HubAccess hub;
  if (std::string endpoint = Variable({"HF_ENDPOINT"}); !endpoint.empty()) {
    while (endpoint.ends_with('/')) endpoint.pop_back();
    hub.endpoint = std::move(endpoint);
  }
  fs::path home = PathIn(Variable({"HF_HOME"}));
  if (home.empty()) home = CacheHome() / "huggingface";
  hub.cache = PathIn(Variable({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}));
  if (hub.cache.empty()) hub.cache = home / "hub";
  hub.token = TokenOf(Variable({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}));
  if (hub.token.empty() && !IsOn("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    const fs::path file = PathIn(Variable({"HF_TOKEN_PATH"}));
    hub.token = TokenIn(file.empty() ? home / "token" : file);
  }
  return hub;
}

S3Access S3FromEnvironment() {
  S3Access s3;
  s3.endpoint = Variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  while (s3.endpoint.ends_with('/')) s3.endpoint.pop_back();
  s3.region = Variable({"AWS_REGION", "AWS_DEFAULT_REGION"});
  s3.access_key_id = Variable({"AWS_ACCESS_KEY_ID"});
  s3.secret_access_key = Variable({"AWS_SECRET_ACCESS_KEY"});
  s3.session_token = Variable({"AWS_SESSION_TOKEN"});
  if (std::string profile = Variable({"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}); !profile.empty()) {
    s3.profile = std::move(profile);
  }
  s3.credentials_file = PathIn(Variable({"AWS_SHARED_CREDENTIALS_FILE"}));
  if (s3.credentials_file.empty()) s3.credentials_file = Home() / ".aws" / "credentials";
  s3.config_file = PathIn(Variable({"AWS_CONFIG_FILE"}));
  if (s3.config_file.empty()) s3.config_file = Home() / ".aws" / "config";
  if (const std::string path = Variable({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"});
      !path.empty()) {
    s3.container_url = "http://169.254.170.2" + path;
  } else {
    s3.container_url = Variable({"AWS_CONTAINER_CREDENTIALS_FULL_URI"});
  }
  s3.container_token = Variable({"AWS_CONTAINER_AUTHORIZATION_TOKEN"});
  s3.container_token_file = PathIn(Variable({"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"}));
  if (std::string metadata = Variable({"AWS_EC2_METADATA_SERVICE_ENDPOINT"}); !metadata.empty()) {
    while (metadata.ends_with('/')) metadata.pop_back();
    s3.metadata_endpoint = std::move(metadata);
  }
  if (IsOn("AWS_EC2_METADATA_DISABLED")) s3.metadata_endpoint.clear();
  s3.sign = !IsOn("AWS_NO_SIGN_REQUEST");
  return s3;
}

}  // namespace

SourceOptions SourceOptions::FromEnvironment() {
  SourceOptions options;
  options.hub = HubFromEnvironment();
  options.s3 = S3FromEnvironment();
  options.offline = IsOn("HF_HUB_OFFLINE") || IsOn("TRANSFORMERS_OFFLINE");
  Result<fs::path> own = CacheFolder();
  options.own_cache = own.ok() ? *std::move(own) : Home() / ".cache" / "tandem";
  options.certificates =
      PathIn(Variable({"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "AWS_CA_BUNDLE"}));
  const std::string seconds = Variable({"HF_HUB_DOWNLOAD_TIMEOUT"});
  int stall = 0;
  const auto read = std::from_chars(seconds.data(), seconds.data() + seconds.size(), stall);
  if (read.ec == std::errc() && stall > 0) options.stall = std::chrono::seconds(stall);
  return options;
}

}  // namespace tandem
