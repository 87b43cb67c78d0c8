#include "sources/aws_credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "sources/testing/http_server.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::HttpServer;
using testing::ServedReply;
using testing::ServedRequest;

constexpr const char* kAnswer =
    R"({"AccessKeyId": "id", "SecretAccessKey": "secret", "Token": "token",
        "Expiration": "2999-01-01T00:00:00Z"})";

class AwsCredentialsTest : public ::testing::Test {
 protected:
  AwsCredentialsTest()
      : folder_(fs::temp_directory_path() /
                ("aws_credentials_test." + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    options_.retry = std::chrono::milliseconds(1);
    options_.s3.metadata_endpoint.clear();
    options_.s3.credentials_file = folder_ / "credentials";
    options_.s3.config_file = folder_ / "config";
  }
  ~AwsCredentialsTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  const fs::path folder_;
  SourceOptions options_;
};

TEST_F(AwsCredentialsTest, ReadsSectionsOfFiles) {
  constexpr std::string_view kText =
      "# comment\n[default]\naws_access_key_id = a\n\n[profile "
      "x]\r\nregion=eu-west-1\r\n[broken\n=\n";
  EXPECT_EQ(ReadIniSection(kText, "default").at("aws_access_key_id"), "a");
  EXPECT_EQ(ReadIniSection(kText, "profile x").at("region"), "eu-west-1");
  EXPECT_TRUE(ReadIniSection(kText, "y").empty());
}

TEST_F(AwsCredentialsTest, TheEnvironmentGoesBeforeFilesAndFilesBeforeServices) {
  const HttpServer service([](const ServedRequest&) -> ServedReply { return {.body = kAnswer}; });
  options_.s3.container_url = service.Url();
  std::ofstream(options_.s3.credentials_file)
      << "[default]\naws_access_key_id = d\naws_secret_access_key = ds\n"
         "[work]\naws_access_key_id = w\naws_secret_access_key = ws\naws_session_token = wt\n";
  std::ofstream(options_.s3.config_file) << "[profile work]\nregion = eu-north-1\n";
  EXPECT_EQ((*AwsCredentials(options_).Get())->access_key_id, "d");
  options_.s3.profile = "work";
  EXPECT_EQ((*AwsCredentials(options_).Get())->session_token, "wt");
  EXPECT_EQ(AwsCredentials(options_).Region(), "eu-north-1");
  options_.s3.access_key_id = "e";
  options_.s3.secret_access_key = "es";
  EXPECT_EQ((*AwsCredentials(options_).Get())->access_key_id, "e");
  EXPECT_TRUE(service.Requests().empty());
  options_.s3.sign = false;
  EXPECT_FALSE(AwsCredentials(options_).Get()->has_value());
}

TEST_F(AwsCredentialsTest, AContainersServiceIsAskedWithItsToken) {
  const HttpServer service([](const ServedRequest&) -> ServedReply { return {.body = kAnswer}; });
  std::ofstream(folder_ / "token") << "from a file\n";
  options_.s3.container_url = service.Url() + "/role";
  options_.s3.container_token_file = folder_ / "token";
  AwsCredentials credentials(options_);
  for (int i = 0; i < 2; ++i) EXPECT_EQ((*credentials.Get())->session_token, "token");
  ASSERT_EQ(service.Requests().size(), 1u);  // they are valid for long
  EXPECT_EQ(service.Requests()[0].Header("authorization"), "from a file");
  options_.s3.container_url = "http://example.com/";
  EXPECT_EQ(AwsCredentials(options_).Get().status().code(), Code::kInvalidArgument);
}

TEST_F(AwsCredentialsTest, CredentialsThatExpireAreAskedForAgain) {
  const HttpServer service([](const ServedRequest&) -> ServedReply {
    return {
        .body =
            R"({"AccessKeyId": "id", "SecretAccessKey": "s", "Expiration": "2001-01-01T00:00:00Z"})"};
  });
  options_.s3.container_url = service.Url();
  AwsCredentials credentials(options_);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(credentials.Get()->has_value());
  EXPECT_EQ(service.Requests().size(), 3u);
}

TEST_F(AwsCredentialsTest, AMachinesServiceIsAskedWithAToken) {
  const HttpServer service([](const ServedRequest& request) -> ServedReply {
    if (request.method == "PUT") return {.body = "t0ken"};
    if (request.Header("x-aws-ec2-metadata-token") != "t0ken") return {.status = 401};
    if (request.target.ends_with("/security-credentials/")) return {.body = "my-role\n"};
    return {.body = kAnswer};
  });
  options_.s3.metadata_endpoint = service.Url();
  EXPECT_EQ((*AwsCredentials(options_).Get())->secret_access_key, "secret");
  ASSERT_EQ(service.Requests().size(), 3u);
  EXPECT_EQ(service.Requests()[2].target, "/latest/meta-data/iam/security-credentials/my-role");
}

TEST_F(AwsCredentialsTest, WithoutAnyRequestsGoUnsigned) {
  options_.s3.metadata_endpoint = "http://127.0.0.1:1";  // nobody listens there
  const auto none = AwsCredentials(options_).Get();
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
}

}  // namespace
}  // namespace tandem
