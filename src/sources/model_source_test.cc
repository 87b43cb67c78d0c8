#include "sources/model_source.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Variables for one test.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::string>& values) {
    for (const auto& [name, value] : values) {
      const char* before = std::getenv(name.c_str());
      if (before != nullptr) before_[name] = before;
      names_.push_back(name);
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~Environment() {
    for (const std::string& name : names_) {
      const auto before = before_.find(name);
      if (before == before_.end()) {
        ::unsetenv(name.c_str());
      } else {
        ::setenv(name.c_str(), before->second.c_str(), 1);
      }
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST(ModelSourceTest, TellsNamesFromPaths) {
  const fs::path folder =
      fs::temp_directory_path() / ("model_source_test." + std::to_string(::getpid()));
  fs::create_directories(folder / "models" / "llama");
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  for (const char* name : {"gpt2", "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-0.5B", "s3://bucket",
                           "s3://bucket/model.tar.gz", "a/b_c"}) {
    EXPECT_TRUE(IsRemoteSource(name)) << name;
  }
  for (const char* name : {"",
                           ".",
                           "..",
                           "/absent",
                           "./absent",
                           "../absent",
                           "models",
                           "models/llama",
                           "models/lama",
                           "absent/",
                           "a/b/c",
                           "a//b",
                           "~/x",
                           "model.tar.gz",
                           "a/model.safetensors",
                           "config.json",
                           "-x",
                           "a/../b",
                           "a b",
                           "a/..",
                           "http://x/y"}) {
    EXPECT_FALSE(IsRemoteSource(name)) << name;
  }
  fs::current_path(before);
  fs::remove_all(folder);
}

TEST(ModelSourceTest, ALocalFolderIsItself) {
  const fs::path folder = fs::canonical("/proc/self/exe").parent_path();
  EXPECT_EQ(*FetchModel(folder.string(), {}), folder);
  EXPECT_EQ(FetchModel("/absent/folder", {}).status().code(), Code::kNotFound);
  const std::string program = fs::read_symlink("/proc/self/exe").string();
  EXPECT_EQ(FetchModel(program, {}).status().code(), Code::kInvalidArgument);
}

TEST(ModelSourceTest, ReadsTheEnvironment) {
  const fs::path home = fs::temp_directory_path() / ("home." + std::to_string(::getpid()));
  fs::create_directories(home);
  std::ofstream(home / "token") << "hf_file\n";
  const Environment environment({{"HOME", home.string()},
                                 {"HF_HOME", home.string()},
                                 {"HF_HUB_CACHE", ""},
                                 {"HUGGINGFACE_HUB_CACHE", ""},
                                 {"HF_TOKEN", ""},
                                 {"HUGGING_FACE_HUB_TOKEN", ""},
                                 {"HF_TOKEN_PATH", ""},
                                 {"DJL_CACHE_DIR", ""},
                                 {"XDG_CACHE_HOME", ""},
                                 {"HF_ENDPOINT", "https://mirror/"},
                                 {"HF_HUB_OFFLINE", "1"},
                                 {"HF_HUB_DOWNLOAD_TIMEOUT", "7"},
                                 {"AWS_PROFILE", "work"},
                                 {"AWS_REGION", "eu-west-1"},
                                 {"AWS_ENDPOINT_URL", "http://minio:9000/"},
                                 {"AWS_ENDPOINT_URL_S3", ""},
                                 {"AWS_SHARED_CREDENTIALS_FILE", "~/keys"},
                                 {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x"},
                                 {"AWS_EC2_METADATA_DISABLED", "true"}});
  const SourceOptions options = SourceOptions::FromEnvironment();
  EXPECT_EQ(options.hub.endpoint, "https://mirror");
  EXPECT_EQ(options.hub.token, "hf_file");
  EXPECT_EQ(options.hub.cache, home / "hub");
  EXPECT_EQ(options.own_cache, home / ".cache" / "tandem");
  EXPECT_TRUE(options.offline);
  EXPECT_EQ(options.stall, std::chrono::seconds(7));
  EXPECT_EQ(options.s3.profile, "work");
  EXPECT_EQ(options.s3.region, "eu-west-1");
  EXPECT_EQ(options.s3.endpoint, "http://minio:9000");
  EXPECT_EQ(options.s3.credentials_file, home / "keys");
  EXPECT_EQ(options.s3.container_url, "http://169.254.170.2/v2/x");
  EXPECT_EQ(options.s3.metadata_endpoint, "");
  fs::remove_all(home);
}

TEST(ModelSourceTest, AVariableAddsNoHeaders) {
  const Environment environment({{"HF_TOKEN", "hf_one\r\nX-Other: 1"}, {"DJL_CACHE_DIR", "/djl"}});
  const SourceOptions options = SourceOptions::FromEnvironment();
  EXPECT_EQ(options.hub.token, "hf_one");
  EXPECT_EQ(options.own_cache, "/djl");
}

}  // namespace
}  // namespace tandem
