// Models that come and go by request: what each is opened with, and what becomes of a failure.
#include "apps/server/url_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "apps/models/session.h"
#include "apps/server/serve_options.h"
#include "base/clock.h"
#include "base/reason.h"
#include "base/testing/temporary_folder.h"

namespace tandem::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Engines that never open: `answer_` says why.
class UrlLoaderTest : public testing::Test {
 protected:
  UrlLoader Loader() {
    return {values_,
            [this](const OptionValues& values) -> Result<std::shared_ptr<ServedEngine>> {
              const ModelOptions opened = ModelOptionRows().Read(values);
              opened_.push_back(opened.target.string());
              EXPECT_THAT(opened.draft.string(), IsEmpty());
              return answer_;
            },
            engines_, models_, TargetOfUrl};
  }

  const TemporaryFolder folder_;
  const std::string model_ = folder_.path().string();
  const std::vector<OptionSpec> rows_ = SessionOptionRows(ServeOptionRows());
  OptionValues values_{rows_};
  Status answer_ = FailedPrecondition("the weights need 2 GiB, 1 GiB are free");
  const SteadyClock clock_;
  serve::ModelRegistry engines_;
  serve::kserve::Repository models_{clock_};
  std::vector<std::string> opened_;
};

TEST_F(UrlLoaderTest, AnAddressIsAFolderOrWhatCanBeDownloaded) {
  ASSERT_TRUE(values_.Set("draft", {"a/draft"}, "--draft").ok());
  UrlLoader loader = Loader();
  for (const std::string& url : {model_, "file:" + model_, "file://" + model_,
                                 std::string("s3://bucket/model"), std::string("owner/model")}) {
    EXPECT_FALSE(loader.Load({.name = "m", .url = url}).ok());
  }
  EXPECT_THAT(opened_, ElementsAre(model_, model_, model_, "s3://bucket/model", "owner/model"));
  const Status absent = loader.Load({.name = "m", .url = "/absent/model"});
  EXPECT_EQ(absent.code(), Code::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("/absent/model"));
}

TEST_F(UrlLoaderTest, AModelThatDoesNotFitIsShortOfMemory) {
  UrlLoader loader = Loader();
  const Status status = loader.Load({.name = "m", .url = model_});
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), answer_.message());
}

TEST_F(UrlLoaderTest, AFailureLeavesNoModelBehind) {
  answer_ = DataLoss("model.safetensors: ends early");
  UrlLoader loader = Loader();
  EXPECT_EQ(loader.Load({.name = "m", .url = model_}).code(), Code::kDataLoss);
  EXPECT_FALSE(engines_.Find("m").ok());
  EXPECT_THAT(models_.Index(), IsEmpty());
  EXPECT_THAT(loader.OriginOf("m").url, IsEmpty());
}

TEST_F(UrlLoaderTest, ANameOfTheRepositoryIsTaken) {
  models_.SetState("preprocessing", serve::kserve::ModelState::kLoading, "its turn comes");
  UrlLoader loader = Loader();
  const Status status = loader.Load({.name = "preprocessing", .url = model_});
  EXPECT_EQ(status.reason(), Reason::kAlreadyExists);
  EXPECT_THAT(opened_, IsEmpty());
  const std::vector<serve::kserve::ModelEntry> index = models_.Index();
  ASSERT_EQ(index.size(), 1u);
  EXPECT_EQ(index[0].state, serve::kserve::ModelState::kLoading);
  EXPECT_EQ(index[0].reason, "its turn comes");
  EXPECT_EQ(loader.Unload("preprocessing").code(), Code::kInvalidArgument);
  EXPECT_EQ(models_.Index().size(), 1u);
}

TEST_F(UrlLoaderTest, WhatIsNotServedCannotBeUnloaded) {
  UrlLoader loader = Loader();
  EXPECT_EQ(loader.Unload("gone").code(), Code::kNotFound);
}

TEST_F(UrlLoaderTest, ModelsOfTheStartStay) {
  UrlLoader loader = Loader();
  loader.NoteStart("first", model_);
  EXPECT_EQ(loader.OriginOf("first").url, model_);
  EXPECT_FALSE(loader.OriginOf("first").by_request);
  EXPECT_EQ(loader.Unload("first").code(), Code::kInvalidArgument);
  EXPECT_EQ(loader.OriginOf("first").url, model_);
}

}  // namespace
}  // namespace tandem::apps
