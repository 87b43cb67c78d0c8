// The result of a full disk or a killed process: the old engine or the new one, complete.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/testing/file_size_limit.h"
#include "checkpoint/convert.h"
#include "checkpoint/testing/hf_folder.h"
#include "engine_folder/build.h"
#include "engine_folder/engine_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class BuildCrashTest : public FolderTest {
 protected:
  BuildCrashTest() {
    HfFolder{}.Write(folder_ / "hf");
    WriteText(folder_ / "hf" / "tokenizer.json", "{}");
  }
  BuildOptions Options(int64_t max_batch_size) const {
    return {.checkpoint_dir = folder_ / "hf",
            .output_dir = folder_ / "engine",
            .limits = {.max_batch_size = max_batch_size}};
  }
  // The batch size of an engine that must be complete.
  int64_t WholeEngine() const {
    const auto engine = OpenEngine(folder_ / "engine");
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    if (!engine.ok()) return -1;
    const Status sound = engine->source->Finish();
    EXPECT_TRUE(sound.ok()) << sound.message();
    EXPECT_TRUE(fs::exists(folder_ / "engine" / "tokenizer.json"));
    return engine->limits.max_batch_size;
  }
};

TEST_F(BuildCrashTest, AFullDiskKeepsTheOldEngine) {
  ASSERT_TRUE(Build(Options(7)).ok());
  const auto whole = static_cast<rlim_t>(fs::file_size(folder_ / "engine" / "rank0.engine"));
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{100}, whole / 2, whole - 1}) {
    Status status;
    {
      const FileSizeLimit full(limit);
      status = Build(Options(8)).status();
    }
    ASSERT_FALSE(status.ok()) << limit;
    EXPECT_NE(status.message().find("cannot write"), std::string::npos) << status.message();
    EXPECT_FALSE(fs::exists(folder_ / "engine.tmp"));
    EXPECT_EQ(WholeEngine(), 7);
  }
  ASSERT_TRUE(Build(Options(8)).ok());
  EXPECT_EQ(WholeEngine(), 8);
}

TEST_F(BuildCrashTest, AFullDiskLeavesNoCheckpoint) {
  const ConvertOptions options = {.model_dir = folder_ / "hf", .output_dir = folder_ / "out"};
  for (const rlim_t limit : {rlim_t{0}, rlim_t{50'000}}) {
    {
      const FileSizeLimit full(limit);
      EXPECT_FALSE(Convert(options).ok());
    }
    EXPECT_FALSE(fs::exists(folder_ / "out"));
    EXPECT_FALSE(fs::exists(folder_ / "out.tmp"));
  }
  EXPECT_TRUE(Convert(options).ok());
}

TEST_F(BuildCrashTest, AKilledBuildLeavesAWholeEngine) {
  ASSERT_TRUE(Build(Options(1)).ok());
  int killed = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int64_t size = 2;; ++size) {
        if (!Build(Options(size)).ok()) ::_exit(1);
      }
    }
    ::usleep(static_cast<useconds_t>(500 + 997 * round % 20'000));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed += WIFSIGNALED(status) ? 1 : 0;
    EXPECT_GE(WholeEngine(), 1) << "round " << round;
  }
  EXPECT_EQ(killed, 60);
  ASSERT_TRUE(Build(Options(9)).ok());
  EXPECT_EQ(WholeEngine(), 9);
  EXPECT_FALSE(fs::exists(folder_ / "engine.tmp"));
}

}  // namespace
}  // namespace tandem
