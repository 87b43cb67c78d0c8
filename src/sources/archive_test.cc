#include "sources/archive.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Entry {
  std::string name;
  std::string text = {};
  char type = '0';  // of ustar: '0' file, '1' hard link, '2' link, '3' and '4' devices, '5' folder,
                    // '6' pipe
  std::string link = {};  // where a link leads
  int64_t size = -1;      // that the header tells; -1: the text's
};

std::string Padded(std::string text) {
  text.resize((text.size() + 511) / 512 * 512);
  return text;
}

std::string Header(const std::string& name, char type, const std::string& link, int64_t size) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    header.replace(at, text.size(), text);
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", size));
  put(136, "00000000000");
  put(148, "        ");
  header[156] = type;
  put(157, link.substr(0, 100));
  put(257, "ustar");
  put(263, "00");
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum));
  header[154] = '\0';
  return header;
}

// Names of any length come before their header, as GNU tar writes them.
std::string Tar(const std::vector<Entry>& entries) {
  std::string tar;
  for (const Entry& entry : entries) {
    const auto put_long = [&](char type, const std::string& text) {
      if (text.size() < 100) return;
      tar += Header("././@LongLink", type, "", static_cast<int64_t>(text.size() + 1));
      tar += Padded(text + '\0');
    };
    put_long('L', entry.name);
    put_long('K', entry.link);
    const auto size = static_cast<int64_t>(entry.text.size());
    tar += Header(entry.name, entry.type, entry.link, entry.size >= 0 ? entry.size : size);
    tar += Padded(entry.text);
  }
  return tar + std::string(1024, '\0');
}

class ArchiveTest : public ::testing::Test {
 protected:
  ArchiveTest()
      : top_(fs::temp_directory_path() / ("archive_test." + std::to_string(::getpid()))),
        folder_(top_ / "in" / "model") {
    fs::create_directories(top_ / "in");
    fs::create_directories(top_ / "out");
    std::ofstream(top_ / "out" / "secret") << "untouched";
  }
  ~ArchiveTest() override {
    std::error_code ignored;
    fs::remove_all(top_, ignored);
  }

  fs::path Write(const std::vector<Entry>& entries) const {
    fs::path path = top_ / "a.tar";
    std::ofstream(path, std::ios::binary) << Tar(entries);
    return path;
  }

  Status Unpacked(const std::vector<Entry>& entries) const {
    return Unpack(Write(entries), folder_, limits_);
  }

  void ExpectRefused(const std::vector<Entry>& entries, std::string_view why) const {
    const Status status = Unpacked(entries);
    EXPECT_EQ(status.code(), Code::kDataLoss) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(why));
    EXPECT_TRUE(fs::is_empty(top_ / "in")) << "something of it remains";
    EXPECT_EQ(*ReadTextFile(top_ / "out" / "secret"), "untouched");
    EXPECT_EQ(std::distance(fs::directory_iterator(top_ / "out"), {}), 1);
  }

  const fs::path top_;
  const fs::path folder_;
  UnpackLimits limits_{.max_bytes = int64_t{1} << 30, .max_entries = 1000};
};

TEST_F(ArchiveTest, UnpacksFilesFoldersAndLinks) {
  ASSERT_TRUE(Unpacked({{.name = "./", .type = '5'},
                        {.name = "./model/", .type = '5'},
                        {.name = "./model/config.json", .text = "{}"},
                        {.name = "deep/er/x", .text = std::string(100'000, 'x')},
                        {.name = "empty"},
                        {.name = "snapshots/1/config.json", .type = '2', .link = "../../blobs/b"},
                        {.name = "blobs/b", .text = "{}"},
                        {.name = "twin", .type = '1', .link = "blobs/b"}})
                  .ok());
  EXPECT_EQ(*ReadTextFile(folder_ / "model" / "config.json"), "{}");
  EXPECT_EQ(fs::file_size(folder_ / "deep" / "er" / "x"), 100'000u);
  EXPECT_EQ(fs::file_size(folder_ / "empty"), 0u);
  EXPECT_EQ(*ReadTextFile(folder_ / "snapshots" / "1" / "config.json"), "{}");
  EXPECT_EQ(*ReadTextFile(folder_ / "twin"), "{}");
}

TEST_F(ArchiveTest, WaysOutAreRefused) {
  const std::string outside = (top_ / "out" / "secret").string();
  ExpectRefused({{.name = "good", .text = "x"}, {.name = "../out/evil", .text = "x"}}, "leads out");
  ExpectRefused({{.name = "a/../../../out/evil", .text = "x"}}, "leads out");
  ExpectRefused({{.name = outside, .text = "x"}}, "absolute name");
  ExpectRefused({{.name = "l", .type = '2', .link = outside}}, "link that leads out");
  ExpectRefused({{.name = "l", .type = '2', .link = "../../out"}}, "link that leads out");
  ExpectRefused({{.name = "a/l", .type = '2', .link = "../../../out"}}, "link that leads out");
  ExpectRefused({{.name = "h", .type = '1', .link = outside}}, "link");
  ExpectRefused({{.name = "h", .type = '1', .link = "../../out/secret"}}, "link that leads out");
  ExpectRefused({{.name = "h", .type = '1', .link = "absent"}}, "link to no file");
}

TEST_F(ArchiveTest, NothingIsWrittenThroughALink) {
  ExpectRefused({{.name = "d", .type = '2', .link = "."}, {.name = "d/x", .text = "x"}},
                "lies beyond a link");
  ExpectRefused({{.name = "d", .type = '2', .link = "x"}, {.name = "d", .text = "x"}},
                "comes twice");
  ExpectRefused({{.name = "d", .text = "x"}, {.name = "d", .type = '2', .link = "x"}},
                "comes twice");
  // Each link stays inside by its own words; together they do not.
  ExpectRefused({{.name = "a/b/c", .type = '2', .link = ".."},
                 {.name = "l", .type = '2', .link = "a/b/c/../../.."}},
                "link that leads out");
  ExpectRefused({{.name = "s", .type = '2', .link = "x"}, {.name = "h", .type = '1', .link = "s"}},
                "link to no file");
}

TEST_F(ArchiveTest, DevicesAndPipesAreRefused) {
  for (const char type : {'3', '4', '6'}) {
    ExpectRefused({{.name = "d", .type = type}}, "neither a file, a folder nor a link");
  }
}

TEST_F(ArchiveTest, LongAndUnprintableNamesAreRefused) {
  ExpectRefused({{.name = std::string(300, 'x'), .text = "x"}}, "too long");
  std::string deep;
  for (int i = 0; i < 300; ++i) deep += "aaaa/";
  ExpectRefused({{.name = deep + "x", .text = "x"}}, "too long");
  ExpectRefused({{.name = "a\nb", .text = "x"}}, "not printable");
  ExpectRefused({{.name = "a\\..\\b", .text = "x"}}, "leads out");
}

TEST_F(ArchiveTest, TooManyEntriesAreRefused) {
  std::vector<Entry> entries;
  for (int i = 0; i < 1001; ++i) entries.push_back({.name = "f" + std::to_string(i)});
  ExpectRefused(entries, "beyond the limit of 1000");
  entries.pop_back();
  EXPECT_TRUE(Unpacked(entries).ok());
}

TEST_F(ArchiveTest, BombsAreRefused) {
  ExpectRefused({{.name = "zeros", .text = "0", .size = int64_t{1} << 28}}, "200 times as long");
  limits_.max_bytes = 1000;
  ExpectRefused(
      {{.name = "a", .text = std::string(600, 'a')}, {.name = "b", .text = std::string(600, 'b')}},
      "longer than 1000 B, the limit");
}

TEST_F(ArchiveTest, DamagedArchivesLeaveNothing) {
  std::string text;
  for (int i = 0; i < 40'000; ++i) text += std::to_string(i * 7919 % 10007);
  const fs::path whole = Write({{.name = "a", .text = text}});
  const auto size = fs::file_size(whole);
  for (const uintmax_t cut : {size / 2, size / 3, uintmax_t{10}, uintmax_t{0}}) {
    fs::resize_file(whole, cut);
    EXPECT_EQ(Unpack(whole, folder_, limits_).code(), Code::kDataLoss) << cut;
    EXPECT_TRUE(fs::is_empty(top_ / "in"));
  }
}

TEST_F(ArchiveTest, ATarWithoutItsEndIsRefused) {
  const std::vector<Entry> entries = {{.name = "config.json", .text = "{}"},
                                      {.name = std::string(150, 'n'), .text = "a long name"}};
  const std::string whole = Tar(entries);
  const size_t end = whole.size() - 1024;
  const auto unpack = [&](size_t size) {
    const fs::path path = top_ / "a.tar";
    std::ofstream(path, std::ios::binary) << whole.substr(0, size);
    return Unpack(path, folder_, limits_);
  };
  // Between two entries, between a long name and its header, and after the last one.
  for (const size_t size : {size_t{1024}, size_t{1536}, size_t{2048}, end}) {
    SCOPED_TRACE(size);
    const Status status = unpack(size);
    EXPECT_EQ(status.code(), Code::kDataLoss);
    const bool is_between = size == 1024 || size == end;
    EXPECT_THAT(status.message(), HasSubstr(is_between ? "it ends early" : "is no whole tar"));
    EXPECT_TRUE(fs::is_empty(top_ / "in"));
  }
  // Some writers end with one block, which is all that tells.
  EXPECT_TRUE(unpack(end + 512).ok());
}

TEST_F(ArchiveTest, WhatAKilledProcessLeftIsReplaced) {
  fs::create_directories(top_ / "in" / "model.unfinished" / "rest");
  ASSERT_TRUE(Unpacked({{.name = "config.json", .text = "{}"}}).ok());
  EXPECT_FALSE(NameExists(folder_ / "rest"));
  EXPECT_FALSE(NameExists(top_ / "in" / "model.unfinished"));
}

}  // namespace
}  // namespace tandem
