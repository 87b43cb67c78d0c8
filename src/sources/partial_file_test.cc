#include "sources/partial_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PartialFileTest : public ::testing::Test {
 protected:
  PartialFileTest()
      : folder_(fs::temp_directory_path() / ("partial_file_test." + std::to_string(::getpid()))),
        path_(folder_ / "x") {
    fs::create_directories(folder_);
  }
  ~PartialFileTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  // 25 bytes in parts of 10.
  std::unique_ptr<PartialFile> Open(std::string_view identity = "version 1") const {
    auto file = PartialFile::Open(path_, identity, 25, 10);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return *std::move(file);
  }
  static Status Append(PartialFile& file, int part, std::string_view text) {
    return file.Append(part, std::as_bytes(std::span(text)));
  }

  const fs::path folder_;
  const fs::path path_;
};

TEST_F(PartialFileTest, PartsInAnyOrderMakeTheFile) {
  const auto file = Open();
  ASSERT_EQ(file->num_parts(), 3);
  EXPECT_EQ(file->PartSize(2), 5);
  EXPECT_TRUE(Append(*file, 2, "uvwxy").ok());
  EXPECT_TRUE(Append(*file, 0, "abc").ok());
  EXPECT_TRUE(Append(*file, 1, "klmnopqrst").ok());
  EXPECT_EQ(file->BytesMissing(), 7);
  EXPECT_TRUE(Append(*file, 0, "defghij").ok());
  EXPECT_FALSE(NameExists(path_));
  EXPECT_TRUE(file->Commit(std::nullopt).ok());
  EXPECT_EQ(*ReadTextFile(path_), "abcdefghijklmnopqrstuvwxy");
}

TEST_F(PartialFileTest, AnotherOneGoesOnWithIt) {
  EXPECT_TRUE(Append(*Open(), 1, "klm").ok());
  EXPECT_EQ(Open()->PartDone(1), 3);
  EXPECT_EQ(Open()->BytesMissing(), 22);
  EXPECT_EQ(Open("version 2")->BytesMissing(), 25);
}

TEST_F(PartialFileTest, DamagedRecordsOfPartsCountAsNone) {
  EXPECT_TRUE(Append(*Open(), 0, "abc").ok());
  fs::resize_file(folder_ / "x.parts", 140);
  EXPECT_EQ(Open()->BytesMissing(), 25);
  EXPECT_TRUE(Append(*Open(), 0, "abc").ok());
  fs::resize_file(folder_ / "x.partial", 3);
  EXPECT_EQ(Open()->BytesMissing(), 25);
}

TEST_F(PartialFileTest, AFullDiskIsToldAndKeepsWhatHasArrived) {
  const auto file = Open();
  EXPECT_TRUE(Append(*file, 0, "abc").ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 12, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = Append(*file, 1, "klmnopqrst");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("x.partial: cannot be written: File too large"));
  EXPECT_EQ(Open()->PartDone(0), 3);
  EXPECT_EQ(Open()->PartDone(1), 0);
}

TEST_F(PartialFileTest, WithAWrongDigestNothingRemains) {
  const auto file = Open();
  EXPECT_TRUE(Append(*file, 0, "abcdefghij").ok());
  EXPECT_TRUE(Append(*file, 1, "klmnopqrst").ok());
  EXPECT_TRUE(Append(*file, 2, "uvwxy").ok());
  EXPECT_EQ(file->Commit(ExpectedDigest{DigestKind::kSha256, "00"}).code(), Code::kDataLoss);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace tandem
