#include "quantize/calibration_folder.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/testing/hf_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr int64_t kLayers = 3;
const std::string kThis = "{\n  \"family\": \"llama\"\n}\nmodel\n";
const std::string kOther = "{\n  \"family\": \"llama\"\n}\nanother model\n";

class CalibrationFolderTest : public FolderTest {
 protected:
  using Names = std::set<std::string>;

  Names NamesIn() const {
    Names names;
    for (const auto& entry : fs::directory_iterator(path_)) names.insert(entry.path().filename());
    return names;
  }
  // As a run that has calibrated one layer leaves it.
  void BeginRun(const std::string& identity) const {
    ASSERT_TRUE(kept_.Take(identity, kLayers).ok());
    WriteText(kept_.LayerFile(0), "layer");
    WriteText(kept_.HiddenFile(1), "hidden");
    WriteText(kept_.HiddenFile(2).string() + ".tmp", "half");
  }
  // The message with which the folder is refused, unchanged.
  std::string Refusal() const {
    const Names before = fs::is_directory(path_) ? NamesIn() : Names();
    const Status status = kept_.Take(kThis, kLayers);
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_TRUE(status.message().starts_with(path_.string() + ": is in the way"))
        << status.message();
    EXPECT_EQ(fs::is_directory(path_) ? NamesIn() : Names(), before);
    return status.message();
  }

  const fs::path path_ = folder_ / "out.calibration";
  const CalibrationFolder kept_{path_};
};

TEST_F(CalibrationFolderTest, FilesOfTheSameRunAreTakenOver) {
  BeginRun(kThis);
  ASSERT_TRUE(kept_.Take(kThis, kLayers).ok());
  EXPECT_EQ(kept_.LayersDone(kLayers), 1);
  EXPECT_TRUE(NamesIn().contains("hidden-1"));
}

TEST_F(CalibrationFolderTest, FilesOfAnotherRunAreDeleted) {
  BeginRun(kOther);
  ASSERT_TRUE(kept_.Take(kThis, kLayers).ok());
  EXPECT_EQ(NamesIn(), (Names{"run.json"}));
}

TEST_F(CalibrationFolderTest, FilesOfAnotherVersionAreDeleted) {
  BeginRun(kThis);
  WriteText(path_ / "run.json", "calibration 1\n" + kThis);
  ASSERT_TRUE(kept_.Take(kThis, kLayers).ok());
  EXPECT_EQ(NamesIn(), (Names{"run.json"}));
}

TEST_F(CalibrationFolderTest, ARunThatWasKilledAtItsFirstFileIsBegunAgain) {
  fs::create_directories(path_);
  WriteText(path_ / "run.json.tmp", "{");
  ASSERT_TRUE(kept_.Take(kThis, kLayers).ok());
  EXPECT_EQ(kept_.LayersDone(kLayers), 0);
}

// Wherever it was killed: the files go one after the other, in any order, and run.json last.
TEST_F(CalibrationFolderTest, ARunThatWasKilledWhileItsFilesWereRemovedIsBegunAgain) {
  for (const std::string& identity : {kThis, kOther}) {
    for (const std::string gone : {"hidden-1", "layer-0.safetensors", "hidden-2.tmp"}) {
      BeginRun(identity);
      fs::remove(path_ / gone);
      ASSERT_TRUE(kept_.Take(kThis, kLayers).ok()) << gone;
      const int64_t done = kept_.LayersDone(kLayers);
      EXPECT_TRUE(done == 0 || NamesIn().contains("hidden-1")) << gone;
      fs::remove_all(path_);
    }
  }
}

TEST_F(CalibrationFolderTest, WhatNoRunWroteIsRefusedAndStays) {
  WriteText(path_, "a file");
  EXPECT_THAT(Refusal(), HasSubstr("cannot be listed"));
  EXPECT_EQ(*ReadTextFile(path_), "a file");
  fs::remove(path_);

  BeginRun(kOther);
  WriteText(path_ / "precious.csv", "mine");
  EXPECT_THAT(Refusal(), HasSubstr("\"precious.csv\" in it is none of those"));
  fs::remove(path_ / "precious.csv");
  fs::create_directories(path_ / "layer-notes");
  EXPECT_THAT(Refusal(), HasSubstr("layer-notes"));
  fs::remove(path_ / "layer-notes");
  fs::create_directories(path_ / "hidden-2");
  EXPECT_THAT(Refusal(), HasSubstr("\"hidden-2\""));
  fs::remove(path_ / "hidden-2");
  for (const char* name : {"layer-x.safetensors", "layer-1.json", "hidden-", "hidden-1.csv"}) {
    WriteText(path_ / name, "mine");
    EXPECT_THAT(Refusal(), HasSubstr(name));
    fs::remove(path_ / name);
  }

  const std::vector<std::string> others = {"{}",
                                           "",
                                           "calibration\n{}",
                                           "calibration 2",
                                           "calibration two\n" + kThis,
                                           "calibration 2\n{\n}\n",
                                           "calibration 2\n[]\n"};
  for (const std::string& run : others) {
    WriteText(path_ / "run.json", run);
    EXPECT_THAT(Refusal(), HasSubstr("run.json is none")) << run;
  }
  fs::remove(path_ / "run.json");
  EXPECT_THAT(Refusal(), HasSubstr("no run.json"));
}

TEST_F(CalibrationFolderTest, WhatIsNotTheRunsStaysWhenItsFilesAreRemoved) {
  BeginRun(kThis);
  WriteText(path_ / "precious.csv", "mine");
  ASSERT_TRUE(kept_.Remove().ok());
  EXPECT_EQ(NamesIn(), (Names{"precious.csv"}));
  fs::remove_all(path_);
  BeginRun(kThis);
  ASSERT_TRUE(kept_.Remove().ok());
  EXPECT_FALSE(fs::exists(path_));
}

}  // namespace
}  // namespace tandem
