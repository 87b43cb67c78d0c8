// Which models are found in the folders and variables of an LMI container.
#include "apps/lmi/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/testing/temporary_folder.h"

namespace tandem::apps {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

class LmiStoreTest : public testing::Test {
 protected:
  LmiStoreTest() { fs::create_directories(store_); }

  void Write(const fs::path& path, const std::string& text = "") {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  std::vector<std::pair<std::string, std::string>> List() {
    const auto models = ListLmiStore(store_);
    EXPECT_TRUE(models.ok()) << models.status().message();
    return Pairs(models.value());
  }
  Result<std::vector<LmiModelPlace>> Find(const Environment& environment,
                                          const std::string& load_models = "") {
    LmiSettings server;
    server.load_models = load_models;
    return FindLmiModels(environment, server, store_);
  }
  // Name, and the url within the folder of the test.
  std::vector<std::pair<std::string, std::string>> Pairs(
      const std::vector<LmiModelPlace>& models) const {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const LmiModelPlace& model : models) {
      const bool is_path = model.url.starts_with(root_.string());
      pairs.emplace_back(
          model.name, is_path ? fs::path(model.url).lexically_relative(root_).string() : model.url);
    }
    return pairs;
  }

  const TemporaryFolder folder_;
  const fs::path root_ = folder_.path();
  const fs::path store_ = root_ / "model";
};

TEST_F(LmiStoreTest, AFlatStoreIsOneModelOfItsName) {
  Write("model/serving.properties");
  Write("model/config.json");
  fs::create_directories(store_ / "1");
  EXPECT_THAT(List(), ElementsAre(Pair("model", "model")));
}

TEST_F(LmiStoreTest, OneFolderIsAModelOfItsName) {
  Write("model/llama/serving.properties");
  Write("model/.hidden");
  EXPECT_THAT(List(), ElementsAre(Pair("llama", "model/llama")));
}

TEST_F(LmiStoreTest, EachFolderAndArchiveIsAModel) {
  Write("model/b/serving.properties");
  Write("model/a/config.json");
  Write("model/c.tar.gz");
  Write("model/d.zip");
  EXPECT_THAT(List(), ElementsAre(Pair("a", "model/a"), Pair("b", "model/b"),
                                  Pair("c", "model/c.tar.gz"), Pair("d", "model/d.zip")));
}

TEST_F(LmiStoreTest, AFolderStandsForTheOnlyOneInIt) {
  Write("model/llama/inner/serving.properties");
  Write("model/zipped/only.zip");
  EXPECT_THAT(List(), ElementsAre(Pair("llama", "model/llama/inner"),
                                  Pair("zipped", "model/zipped/only.zip")));
}

TEST_F(LmiStoreTest, AnEmptyOrMissingStoreHasNoModels) {
  EXPECT_THAT(List(), IsEmpty());
  fs::create_directories(store_ / "lost+found");
  EXPECT_THAT(List(), IsEmpty());
  EXPECT_THAT(ListLmiStore(root_ / "none").value(), IsEmpty());
}

TEST_F(LmiStoreTest, ReadsEntriesOfLoadModels) {
  const LmiModelPlace whole = ParseLmiModel("test:1:MPI:0;1=/opt/ml/model").value();
  EXPECT_EQ(whole.name, "test");
  EXPECT_EQ(whole.engine, "MPI");
  EXPECT_EQ(whole.devices, "0;1");
  EXPECT_EQ(whole.url, "/opt/ml/model");
  EXPECT_EQ(ParseLmiModel("test::MPI=/opt/ml/model").value().engine, "MPI");
  EXPECT_EQ(ParseLmiModel("[a:::*]=s3://b/c=d").value().url, "s3://b/c=d");
  EXPECT_EQ(ParseLmiModel("[a:::*]=s3://b/c=d").value().devices, "*");
  EXPECT_EQ(ParseLmiModel("s3://bucket/llama/").value().name, "llama");
  EXPECT_EQ(ParseLmiModel("/models/llama.tar.gz").value().name, "llama");
  for (const char* wrong : {"a=", "=", "a:b:c:d:e=/x"}) {
    EXPECT_EQ(ParseLmiModel(wrong).status().code(), Code::kInvalidArgument) << wrong;
  }
}

TEST_F(LmiStoreTest, LoadsWhatIsListed) {
  Write("model/a/serving.properties");
  Write("model/b/serving.properties");
  EXPECT_THAT(Pairs(Find({}, "x=a, y::Python=" + (store_ / "b").string()).value()),
              ElementsAre(Pair("x", "model/a"), Pair("y", "model/b")));
  EXPECT_THAT(Pairs(Find({}, "b").value()), ElementsAre(Pair("b", "model/b")));
  EXPECT_THAT(Pairs(Find({}, "ALL").value()),
              ElementsAre(Pair("a", "model/a"), Pair("b", "model/b")));
  EXPECT_THAT(Pairs(Find({}, "m=file://" + (store_ / "b").string()).value()),
              ElementsAre(Pair("m", "model/b")));
  EXPECT_THAT(Find({}, "x=a,x=b").status().message(), HasSubstr("two models have the name x"));
}

TEST_F(LmiStoreTest, AHubsModelIsAddedUnderItsOwnName) {
  Write("model/serving.properties", "option.model_id=/m");
  const Environment environment = {
      {"HF_MODEL_ID", "org/my-model.7b"}, {"HF_REVISION", "v2"}, {"HF_TASK", "text-generation"}};
  const auto models = Find(environment).value();
  EXPECT_THAT(Pairs(models), ElementsAre(Pair("model", "model"), Pair("org_my_model_7b", "")));
  EXPECT_EQ(models[1].keys.at("option.model_id").value, "org/my-model.7b");
  EXPECT_EQ(models[1].keys.at("option.revision").value, "v2");
  EXPECT_EQ(models[1].keys.at("option.task").where, "HF_TASK");
  EXPECT_THAT(Pairs(Find(environment, "NONE").value()), ElementsAre(Pair("org_my_model_7b", "")));
}

TEST_F(LmiStoreTest, AHubsModelBelongsToAFolderThatNamesNone) {
  Write("model/serving.properties", "option.max_input_len=256");
  const auto models = Find({{"HF_MODEL_ID", "org/model"}}).value();
  EXPECT_THAT(Pairs(models), ElementsAre(Pair("model", "model")));
  EXPECT_EQ(models[0].keys.at("option.model_id").value, "org/model");
}

TEST_F(LmiStoreTest, HfModelIdMayBeAnAddressOrAFolder) {
  EXPECT_THAT(Pairs(Find({{"HF_MODEL_ID", "s3://bucket/m"}}).value()),
              ElementsAre(Pair("s3___bucket_m", "s3://bucket/m")));
  fs::create_directories(root_ / "local");
  EXPECT_EQ(Pairs(Find({{"HF_MODEL_ID", (root_ / "local").string()}}).value()).front().second,
            "local");
}

TEST_F(LmiStoreTest, OptionModelIdAloneIsAModel) {
  EXPECT_THAT(Pairs(Find({{"OPTION_MODEL_ID", "org/model"}}).value()),
              ElementsAre(Pair("model", "")));
}

TEST_F(LmiStoreTest, WithoutModelsSaysWhatWasLookedFor) {
  const Status status = Find({}).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(),
              testing::AllOf(HasSubstr("model is empty"), HasSubstr("HF_MODEL_ID"),
                             HasSubstr("SERVING_LOAD_MODELS")));
}

TEST_F(LmiStoreTest, RecognizesItsFolders) {
  EXPECT_FALSE(IsLmiFolder(store_));
  EXPECT_FALSE(IsLmiFolder(root_ / "none"));
  Write("model/a/b/serving.properties");
  EXPECT_TRUE(IsLmiFolder(store_)) << "below it";
  Write("hf/config.json");
  Write("hf/sub/serving.properties");
  EXPECT_FALSE(IsLmiFolder(root_ / "hf")) << "a model as it is";
  Write("hf/serving.properties");
  EXPECT_TRUE(IsLmiFolder(root_ / "hf"));
}

TEST_F(LmiStoreTest, RecognizesItsEnvironment) {
  const std::string store = store_.string();
  EXPECT_TRUE(IsLmiEnvironment({{"HF_MODEL_ID", "a/b"}}));
  EXPECT_TRUE(IsLmiEnvironment({{"OPTION_MODEL_ID", "a/b"}}));
  EXPECT_TRUE(IsLmiEnvironment({{"SERVING_LOAD_MODELS", "a=/b"}}));
  EXPECT_TRUE(IsLmiEnvironment({{"SERVING_MODEL_STORE", store}}));
  EXPECT_EQ(LmiStore({}), "/opt/ml/model");
  EXPECT_EQ(LmiStore({{"SERVING_MODEL_STORE", store}}), store);
}

}  // namespace
}  // namespace tandem::apps
