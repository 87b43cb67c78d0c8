#include "checkpoint/output_folder.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "base/file.h"
#include "checkpoint/testing/hf_folder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;

const OutputKind kKind = RankFiles(".engine");

class OutputFolderTest : public FolderTest {
 protected:
  // Names and texts of a folder's files; of a folder in it the name alone.
  static Files FilesOf(const fs::path& folder) {
    Files files;
    for (const auto& entry : fs::directory_iterator(folder)) {
      files[entry.path().filename().string()] =
          entry.is_directory() ? "" : *ReadTextFile(entry.path());
    }
    return files;
  }
  static void WriteFiles(const fs::path& folder, const Files& files) {
    fs::create_directories(folder);
    for (const auto& [name, text] : files) WriteText(folder / name, text);
  }
  // Writes a result as the verbs do.
  static Status Write(const fs::path& path, const Files& files,
                      const NameCalls& calls = NameCalls::System()) {
    TANDEM_ASSIGN_OR_RETURN(const auto output, OutputFolder::Create(path, kKind, calls));
    WriteFiles(output->temporary(), files);
    return output->Commit();
  }
  NameCalls Mounted() const {
    NameCalls calls = NameCalls::System();
    calls.is_mount_point = [out = out_](const fs::path& path) { return path == out; };
    return calls;
  }
  // A mount point that no query finds: the folder itself cannot be renamed.
  NameCalls UnseenMount() const {
    NameCalls calls = NameCalls::System();
    calls.is_mount_point = [](const fs::path&) { return false; };
    calls.exchange = [](const fs::path&, const fs::path&) { return EBUSY; };
    calls.rename = [this, rename = calls.rename](const fs::path& from, const fs::path& to) {
      return from == out_ || to == out_ ? EBUSY : rename(from, to);
    };
    return calls;
  }

  const fs::path out_ = folder_ / "out";
  const Files old_{{"config.json", "old"},
                   {"rank0.engine", "old"},
                   {"rank1.engine", "old"},
                   {"tokenizer.json", "old"}};
  const Files new_{{"config.json", "new"}, {"rank0.engine", "new"}, {"vocab.json", "new"}};
  const Files mine_{{"runtime.json", "mine"}, {"notes.tmp", "mine"}};
};

TEST_F(OutputFolderTest, AResultThatTheDiskHasNoRoomForIsRefusedBeforeItIsMade) {
  const auto output = OutputFolder::Create(out_, kKind).value();
  EXPECT_TRUE(output->CheckRoom(1000).ok());
  const Status status = output->CheckRoom(int64_t{1} << 60);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("out: needs 1048576 TiB, and its disk has "));
}

Files Joined(Files a, const Files& b) {
  a.insert(b.begin(), b.end());
  return a;
}

TEST_F(OutputFolderTest, WhatIsAMountPoint) {
  const NameCalls calls = NameCalls::System();
  EXPECT_TRUE(calls.is_mount_point("/proc"));
  EXPECT_FALSE(calls.is_mount_point(folder_));
}

// A tokenizer of another form would otherwise be served with the new weights.
TEST_F(OutputFolderTest, TheTokenizerGoesWithTheWeightsAndOtherFilesStay) {
  const Files texts{{"tokenizer.json", "old"},
                    {"chat_template.jinja", "old"},
                    {"chat_template.json", "old"},
                    {"tokenizer_config.json", "old"}};
  const Files next{{"config.json", "new"}, {"rank0.engine", "new"}, {"tokenizer.model", "new"}};
  for (const NameCalls& calls : {NameCalls::System(), Mounted(), UnseenMount()}) {
    WriteFiles(out_, Joined(Joined(old_, texts), mine_));
    ASSERT_TRUE(Write(out_, next, calls).ok());
    EXPECT_EQ(FilesOf(out_), Joined(next, mine_));
    fs::remove_all(out_);
  }
}

TEST_F(OutputFolderTest, AMountPointIsFilledInside) {
  fs::create_directories(out_ / "lost+found");
  WriteFiles(out_, {{"runtime.json", "mine"}, {"config.json", "old"}, {"rank0.engine", "old"}});
  {
    const auto lost = OutputFolder::Create(out_, kKind, Mounted()).value();
    EXPECT_EQ(lost->temporary().parent_path(), out_);
    EXPECT_EQ(lost->Beside(".calibration").parent_path(), out_);
    WriteFiles(lost->temporary(), new_);
  }
  EXPECT_EQ(FilesOf(out_)["config.json"], "old");
  ASSERT_TRUE(Write(out_, new_, Mounted()).ok());
  EXPECT_EQ(FilesOf(out_), Joined(new_, {{"runtime.json", "mine"}, {"lost+found", ""}}));
}

// Its files would be deleted with the old folder.
TEST_F(OutputFolderTest, AFolderWithAMountPointInItIsFilledInside) {
  WriteFiles(out_, old_);
  WriteFiles(out_ / "mine" / "volume", {{"thesis.txt", "mine"}});
  NameCalls calls = NameCalls::System();
  calls.is_mount_point = [](const fs::path& path) { return path.filename() == "volume"; };
  calls.exchange = [](const fs::path&, const fs::path&) { return EIO; };
  ASSERT_TRUE(Write(out_, new_, calls).ok());
  EXPECT_EQ(FilesOf(out_), Joined(new_, {{"mine", ""}}));
  EXPECT_EQ(*ReadTextFile(out_ / "mine" / "volume" / "thesis.txt"), "mine");
}

// As a bind mount of the same device is, where the kernel does not name it.
TEST_F(OutputFolderTest, AMountPointThatWasNotSeenIsFilledToo) {
  WriteFiles(out_, Joined(old_, mine_));
  ASSERT_TRUE(Write(out_, new_, UnseenMount()).ok());
  EXPECT_EQ(FilesOf(out_), Joined(new_, mine_));
  EXPECT_EQ(FilesOf(folder_), (Files{{"out", ""}}));
  fs::remove_all(out_);
  fs::create_directories(out_);
  ASSERT_TRUE(Write(out_, new_, UnseenMount()).ok());
  EXPECT_EQ(FilesOf(out_), new_);
}

TEST_F(OutputFolderTest, AFolderIsReplacedWhereNamesCannotBeExchanged) {
  WriteFiles(out_, Joined(old_, mine_));
  NameCalls calls = NameCalls::System();
  calls.exchange = [](const fs::path&, const fs::path&) { return EINVAL; };
  ASSERT_TRUE(Write(out_, new_, calls).ok());
  EXPECT_EQ(FilesOf(out_), Joined(new_, mine_));
  EXPECT_EQ(FilesOf(folder_), (Files{{"out", ""}}));
}

// A second run would delete the first one's files.
TEST_F(OutputFolderTest, OneRunAtATimeWritesAFolder) {
  fs::create_directories(out_);
  const fs::path link = folder_ / "link";
  fs::create_directory_symlink("out", link);
  for (const NameCalls& calls : {NameCalls::System(), Mounted()}) {
    auto first = OutputFolder::Create(out_, kKind, calls).value();
    WriteFiles(first->temporary(), new_);
    for (const fs::path& path : {out_, link}) {
      const auto second = OutputFolder::Create(path, kKind, calls);
      ASSERT_FALSE(second.ok());
      EXPECT_EQ(second.status().code(), Code::kUnavailable);
      EXPECT_THAT(second.status().message(), HasSubstr(out_.string() + ": another run"));
    }
    EXPECT_EQ(FilesOf(first->temporary()), new_);
    ASSERT_TRUE(first->Commit().ok());
    EXPECT_FALSE(OutputFolder::Create(out_, kKind, calls).ok());  // it still tidies up
    first.reset();
    EXPECT_EQ(FilesOf(out_), new_);
    EXPECT_TRUE(OutputFolder::Create(out_, kKind, calls).ok());
  }
}

TEST_F(OutputFolderTest, TheLockOfAKilledRunIsTakenOver) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto output = OutputFolder::Create(out_, kKind);
    ::_exit(output.ok() ? 0 : 1);  // as SIGKILL: nothing is destroyed
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(WEXITSTATUS(status), 0);
  EXPECT_THAT(FilesOf(folder_), Contains(Key("out.lock.tmp")));
  ASSERT_TRUE(Write(out_, new_).ok());
  EXPECT_EQ(FilesOf(folder_), (Files{{"out", ""}}));
}

// The names that a Commit moves are made to fail one after another.
class FailingMoves : public OutputFolderTest, public testing::WithParamInterface<int> {
 protected:
  NameCalls Kind() const {
    if (GetParam() == 0) return Mounted();
    if (GetParam() == 1) return UnseenMount();
    NameCalls calls = NameCalls::System();
    calls.exchange = [](const fs::path&, const fs::path&) { return EINVAL; };
    return calls;
  }
  NameCalls At(int failing, const std::function<int()>& fail) {
    NameCalls calls = Kind();
    count_ = 0;
    calls.rename = [=, this, rename = calls.rename](const fs::path& from, const fs::path& to) {
      return count_++ == failing ? fail() : rename(from, to);
    };
    return calls;
  }
  static constexpr int kMoves = 12;  // more than a Commit makes
  int count_ = 0;
};

TEST_P(FailingMoves, TheOlderFilesAndTheNewResultSurviveAnError) {
  int failures = 0;
  for (int failing = 0; failing < kMoves; ++failing) {
    fs::remove_all(out_);
    WriteFiles(out_, Joined(old_, mine_));
    const Status status = Write(out_, new_, At(failing, [] { return EIO; }));
    const Files files = FilesOf(out_);
    if (status.ok()) {
      EXPECT_EQ(files, Joined(new_, mine_)) << failing;
      continue;
    }
    ++failures;
    const fs::path kept = GetParam() == 0 ? out_ / "tandem.tmp" : folder_ / "out.tmp";
    EXPECT_THAT(status.message(), HasSubstr("the new result is in " + kept.string()));
    for (const auto& [name, text] : Joined(old_, mine_)) EXPECT_EQ(files.at(name), text) << failing;
    EXPECT_THAT(files, Not(Contains(Key("vocab.json")))) << failing;
    for (const auto& [name, text] : new_) EXPECT_EQ(FilesOf(kept).at(name), text) << failing;
  }
  EXPECT_GE(failures, 1);
  EXPECT_LT(count_, kMoves);
}

TEST_P(FailingMoves, AKilledMoveIsCompletedOrTakenBackByTheNextRun) {
  int killed = 0;
  for (int failing = 0; failing < kMoves; ++failing) {
    fs::remove_all(out_);
    WriteFiles(out_, Joined(old_, mine_));
    fs::create_directories(out_ / "tandem.calibration");
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const Status status = Write(out_, new_, At(failing, []() -> int { ::_exit(7); }));
      ::_exit(status.ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 1) << failing;
    if (WEXITSTATUS(status) == 7) ++killed;
    {
      const auto output = OutputFolder::Create(out_, kKind, Kind());
      ASSERT_TRUE(output.ok()) << failing << output.status().message();
      EXPECT_EQ((*output)->Beside(".calibration"), out_ / "tandem.calibration");
    }
    Files files = FilesOf(out_);
    EXPECT_EQ(files.erase("tandem.calibration"), 1u);
    EXPECT_TRUE(files == Joined(old_, mine_) || files == Joined(new_, mine_)) << failing;
    ASSERT_TRUE(Write(out_, new_, Kind()).ok()) << failing;
    files = FilesOf(out_);
    files.erase("tandem.calibration");
    EXPECT_EQ(files, Joined(new_, mine_)) << failing;
    EXPECT_EQ(FilesOf(folder_), (Files{{"out", ""}})) << failing;
  }
  EXPECT_GE(killed, 1);
}

INSTANTIATE_TEST_SUITE_P(Placings, FailingMoves, testing::Values(0, 1, 2));

TEST_F(OutputFolderTest, ALinkIsFollowed) {
  WriteFiles(folder_ / "disk" / "real", Joined(old_, mine_));
  fs::create_directory_symlink("disk/real", out_);
  ASSERT_TRUE(Write(out_, new_).ok());
  EXPECT_TRUE(fs::is_symlink(out_));
  EXPECT_EQ(FilesOf(folder_ / "disk" / "real"), Joined(new_, mine_));
  EXPECT_EQ(FilesOf(folder_ / "disk"), (Files{{"real", ""}}));
  const fs::path leads_nowhere = folder_ / "later";
  fs::create_directory_symlink("disk/absent", leads_nowhere);
  ASSERT_TRUE(Write(leads_nowhere, new_).ok());
  EXPECT_TRUE(fs::is_symlink(leads_nowhere));
  EXPECT_EQ(FilesOf(folder_ / "disk" / "absent"), new_);
  fs::create_directory_symlink("loop", folder_ / "loop");
  EXPECT_FALSE(Write(folder_ / "loop", new_).ok());
}

}  // namespace
}  // namespace tandem
