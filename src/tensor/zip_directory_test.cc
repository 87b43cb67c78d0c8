#include "tensor/zip_directory.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tensor/testing/zip_archive.h"

namespace tandem {
namespace {

std::string TextOf(const ZippedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes.data()), file.bytes.size()};
}

const std::string kPlain = ZipArchive({{"a/one", "first"}, {"a/two", "second!"}, {"a/none", ""}});
const std::string kWide =
    ZipArchive({{"a/one", "first"}, {"a/two", "second!"}, {"a/none", ""}}, true);

TEST(ZipDirectoryTest, GivesTheStoredBytesOfEachFile) {
  for (const std::string& archive : {kPlain, kWide}) {
    const auto files = ReadZipDirectory(AsBytes(archive));
    ASSERT_TRUE(files.ok()) << files.status().message();
    ASSERT_EQ(files->size(), 3u);
    EXPECT_EQ(TextOf(files->at("a/one")), "first");
    EXPECT_EQ(TextOf(files->at("a/two")), "second!");
    EXPECT_EQ(TextOf(files->at("a/none")), "");
    EXPECT_GE(files->at("a/one").bytes.data(), AsBytes(archive).data());
    for (const auto& [name, file] : *files) EXPECT_EQ(Crc32(file.bytes), file.crc32) << name;
  }
}

TEST(ZipDirectoryTest, ComputesTheChecksumOfZip) {
  EXPECT_EQ(Crc32({}), 0u);
  EXPECT_EQ(Crc32(AsBytes("123456789")), 0xcbf43926u);  // the check value of CRC-32/ISO-HDLC
}

TEST(ZipDirectoryTest, ReadsArchivesWithACommentOrWithoutFiles) {
  std::string archive = WithField<uint16_t>(kPlain, kZipEnd, 20, 5) + "PK\5\6!";
  ASSERT_TRUE(ReadZipDirectory(AsBytes(archive)).ok());
  EXPECT_TRUE(ReadZipDirectory(AsBytes(ZipArchive({})))->empty());
}

TEST(ZipDirectoryTest, TakesSizesThatFollowTheDataFromTheDirectory) {
  constexpr uint16_t kSizesFollow = 8;
  std::string archive = WithField(kPlain, kZipLocal, 6, kSizesFollow);
  archive = WithField(archive, kZipCentral, 8, kSizesFollow);
  archive = WithField<uint64_t>(archive, kZipLocal, 18, 0);
  const auto files = ReadZipDirectory(AsBytes(archive));
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(TextOf(files->at("a/one")), "first");
}

struct Hostile {
  const char* what;
  std::string archive;
  Code code;
  std::vector<std::string> named;
};

std::vector<Hostile> HostileArchives() {
  const auto plain = [](std::string_view record, size_t offset, auto value) {
    return WithField(kPlain, record, offset, value);
  };
  const auto wide = [](std::string_view record, size_t offset, auto value) {
    return WithField(kWide, record, offset, value);
  };
  std::string renamed = kPlain;
  renamed.replace(renamed.rfind("a/two"), 5, "a/tow");
  std::string twice = ZipArchive({{"a", "1"}, {"b", "2"}});
  twice.replace(twice.find("b2"), 1, "a");
  twice.replace(twice.rfind('b'), 1, "a");
  return {
      {"no bytes", "", Code::kDataLoss, {"not a ZIP archive"}},
      {"text", std::string(100, 'x'), Code::kDataLoss, {"not a ZIP archive"}},
      {"no end", kPlain.substr(0, kPlain.size() - 1), Code::kDataLoss, {"end is missing"}},
      {"bytes after the end", kPlain + "x", Code::kDataLoss, {"end is missing"}},
      {"bytes before the archive", "x" + kPlain, Code::kDataLoss, {"does not end where"}},
      {"encrypted", plain(kZipCentral, 8, uint16_t{1}), Code::kUnimplemented, {"a/one", "encrypt"}},
      {"compressed",
       plain(kZipCentral, 10, uint16_t{8}),
       Code::kUnimplemented,
       {"a/one", "compressed"}},
      {"compressed by its own header alone",
       plain(kZipLocal, 8, uint16_t{8}),
       Code::kDataLoss,
       {"a/one", "disagree"}},
      {"encrypted by its own header alone",
       plain(kZipLocal, 6, uint16_t{1}),
       Code::kDataLoss,
       {"a/one", "disagree"}},
      {"two disks", plain(kZipEnd, 4, uint16_t{1}), Code::kUnimplemented, {"disks"}},
      {"directory on another disk",
       plain(kZipEnd, 6, uint16_t{1}),
       Code::kUnimplemented,
       {"disks"}},
      {"file on another disk",
       plain(kZipCentral, 34, uint16_t{1}),
       Code::kUnimplemented,
       {"disks"}},
      {"two disks by ZIP64", wide(kZip64Locator, 16, uint32_t{2}), Code::kUnimplemented, {"disks"}},
      {"fewer files than stated", plain(kZipEnd, 10, uint16_t{4}), Code::kDataLoss, {"3 files"}},
      {"directory too long",
       plain(kZipEnd, 12, uint32_t{1} << 30),
       Code::kDataLoss,
       {"does not end where"}},
      {"directory beyond the file",
       plain(kZipEnd, 16, uint32_t{1} << 30),
       Code::kDataLoss,
       {"does not end where"}},
      {"directory of other records",
       plain(kZipCentral, 0, uint32_t{7}),
       Code::kDataLoss,
       {"other than a file's header"}},
      {"name beyond the directory",
       plain(kZipCentral, 28, uint16_t{60'000}),
       Code::kDataLoss,
       {"beyond the ZIP directory"}},
      {"file far away",
       plain(kZipCentral, 42, uint32_t{1} << 31),
       Code::kDataLoss,
       {"a/one", "local header"}},
      {"file inside another",
       plain(kZipCentral, 42, uint32_t{3}),
       Code::kDataLoss,
       {"a/one", "local header"}},
      {"longer than its own header says",
       plain(kZipCentral, 20, uint64_t{0x600000006}),
       Code::kDataLoss,
       {"a/one", "disagree"}},
      {"two sizes", plain(kZipCentral, 24, uint32_t{4}), Code::kDataLoss, {"a/one", "disagree"}},
      {"another name in the directory", renamed, Code::kDataLoss, {"a/tow", "disagree"}},
      {"one name twice", twice, Code::kDataLoss, {"\"a\"", "twice"}},
      {"local name beyond the files",
       plain(kZipLocal, 26, uint16_t{60'000}),
       Code::kDataLoss,
       {"a/one", "local header"}},
      {"ZIP64 record missing", wide(kZip64End, 0, uint32_t{0}), Code::kDataLoss, {"ZIP64"}},
      {"ZIP64 record far away", wide(kZip64Locator, 8, UINT64_MAX), Code::kDataLoss, {"ZIP64"}},
      {"ZIP64 count all ones", wide(kZip64End, 32, UINT64_MAX), Code::kDataLoss, {"disagree"}},
      {"ZIP64 offset all ones",
       wide(kZip64End, 48, UINT64_MAX),
       Code::kDataLoss,
       {"does not end where"}},
      {"ZIP64 sizes missing",
       wide(kZipCentral, 46 + 5 + 6, uint16_t{2}),
       Code::kDataLoss,
       {"ZIP64 sizes"}},
      {"ZIP64 size all ones",
       wide(kZipCentral, 46 + 5 + 6 + 4, UINT64_MAX),
       Code::kDataLoss,
       {"a/one", "disagree"}},
      {"ZIP64 place all ones",
       wide(kZipCentral, 46 + 5 + 6 + 20, UINT64_MAX),
       Code::kDataLoss,
       {"a/one", "local header"}},
  };
}

TEST(ZipDirectoryTest, RefusesHostileArchivesNamingTheFault) {
  for (const Hostile& hostile : HostileArchives()) {
    const auto files = ReadZipDirectory(AsBytes(hostile.archive));
    ASSERT_FALSE(files.ok()) << hostile.what;
    const std::string& message = files.status().message();
    EXPECT_EQ(files.status().code(), hostile.code) << hostile.what << ": " << message;
    for (const std::string& part : hostile.named) {
      EXPECT_NE(message.find(part), std::string::npos) << hostile.what << ": " << message;
    }
  }
}

// One file inside the data of another, each with headers of its own that are in order.
TEST(ZipDirectoryTest, RefusesFilesThatOverlap) {
  const std::string inner = ZipArchive({{"b", "inner"}});
  const std::string local = inner.substr(0, inner.find(kZipCentral));
  const std::string central = inner.substr(local.size(), inner.find(kZipEnd) - local.size());
  std::string outer = ZipArchive({{"a", local}});
  const size_t begin = outer.find(local);
  const size_t end = outer.find(kZipEnd, begin);
  outer.insert(end, WithField(central, kZipCentral, 42, static_cast<uint32_t>(begin)));
  const auto bytes = static_cast<uint32_t>(2 * central.size());
  outer = WithField(outer, kZipEnd, 12, bytes);
  outer = WithField<uint16_t>(outer, kZipEnd, 10, 2);
  const auto files = ReadZipDirectory(AsBytes(outer));
  ASSERT_FALSE(files.ok());
  EXPECT_NE(files.status().message().find("\"b\": it overlaps \"a\""), std::string::npos)
      << files.status().message();
}

TEST(ZipDirectoryTest, RefusesEveryTruncation) {
  for (const std::string& archive : {kPlain, kWide}) {
    for (size_t bytes = 0; bytes < archive.size(); ++bytes) {
      EXPECT_FALSE(ReadZipDirectory(AsBytes(archive).first(bytes)).ok()) << bytes;
    }
  }
}

}  // namespace
}  // namespace tandem
