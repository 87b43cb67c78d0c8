#include "tensor/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "tensor/buffer.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest()
      : folder_(fs::temp_directory_path() / ("safetensors_test." + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  fs::path Write(const std::string& content) const {
    const fs::path path = folder_ / "x.safetensors";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  fs::path folder_;
};

std::string Length(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
  return bytes;
}

std::string File(const std::string& header, size_t data_bytes) {
  return Length(header.size()) + header + std::string(data_bytes, '\1');
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

// A file of one tensor "a".
std::string One(const std::string& dtype, const std::string& shape, const std::string& offsets,
                size_t data_bytes = 8) {
  return File("{" + Entry("a", dtype, shape, offsets) + "}", data_bytes);
}

// A file of "a" and "b", F32 [2] each where nothing else is said.
std::string Two(const std::string& offsets_a, const std::string& offsets_b, size_t data_bytes) {
  return File(
      "{" + Entry("a", "F32", "[2]", offsets_a) + "," + Entry("b", "F32", "[2]", offsets_b) + "}",
      data_bytes);
}

struct Hostile {
  const char* what;
  std::string content;
  std::vector<std::string> named;  // parts of the message, in addition to the file
};

std::vector<Hostile> HostileFiles() {
  const std::string good = Entry("a", "F32", "[2]", "[0,8]");
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  std::string ones;
  for (int i = 0; i < 1000; ++i) ones += "1,";
  return {
      {"empty file", "", {"truncated"}},
      {"length cut", std::string("\1\0\0", 3), {"truncated"}},
      {"no header after the length", Length(10), {"truncated", "10 bytes"}},
      {"header cut", Length(50) + "{" + good.substr(0, 20), {"truncated"}},
      {"header of 100,000,001 bytes", Length(100'000'001) + std::string(16, ' '), {"100000001"}},
      {"header length all ones", Length(UINT64_MAX) + "{}", {"limit"}},
      {"header length with the sign bit", Length(uint64_t{1} << 63) + "{}", {"limit"}},
      {"header of no bytes", Length(0), {"does not begin with {"}},
      {"header of spaces", File("        ", 0), {"does not begin with {"}},
      {"header is a list", File("[]", 0), {"does not begin with {"}},
      {"header is a number", File("1", 0), {"does not begin with {"}},
      {"header is not JSON", File("{garbage}", 0), {"not valid JSON"}},
      {"header without its end", File("{" + good, 8), {"not valid JSON"}},
      {"two documents", File("{} {}", 0), {"not valid JSON"}},
      {"a NUL in the header", File(std::string("{\0}", 3), 0), {"not valid JSON"}},
      {"bad UTF-8 in a name", File("{\"\xff\":{}}", 0), {"not valid JSON"}},
      {"a number too large for JSON", One("F32", "[1e999]", "[0,8]"), {"not valid JSON"}},
      {"deep lists", File("{\"a\":" + deep + "}", 0), {"tensor \"a\"", "not an object"}},
      {"deep lists in the shape", One("F32", deep, "[0,8]"), {"tensor \"a\""}},
      {"deep objects", File("{\"a\":{\"b\":{\"c\":{}}}}", 0), {"tensor \"a\""}},
      {"duplicate names", File("{" + good + "," + good + "}", 8), {"tensor \"a\"", "twice"}},
      {"a key of the entry twice",
       File("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
            8),
       {"tensor \"a\"", "\"dtype\"", "twice"}},
      {"unknown key", File("{\"a\":{\"dtype\":\"F32\",\"strides\":[2]}}", 8), {"\"strides\""}},
      {"entry is null", File("{\"a\":null}", 0), {"tensor \"a\"", "null"}},
      {"entry is a string", File("{\"a\":\"F32\"}", 0), {"tensor \"a\"", "a string"}},
      {"no dtype", File("{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8), {"no dtype"}},
      {"no shape", File("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8), {"no shape"}},
      {"no offsets", File("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8), {"no data_offsets"}},
      {"unknown dtype", One("F99", "[2]", "[0,8]"), {"tensor \"a\"", "F99"}},
      {"dtype in lower case", One("f32", "[2]", "[0,8]"), {"tensor \"a\"", "f32"}},
      {"dtype is a number",
       File("{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
       {"tensor \"a\"", "\"dtype\""}},
      {"negative dimension", One("F32", "[-2]", "[0,8]"), {"tensor \"a\"", "-2"}},
      {"fractional dimension", One("F32", "[2.0]", "[0,8]"), {"tensor \"a\"", "2.0"}},
      {"dimension as text", One("F32", "[\"2\"]", "[0,8]"), {"tensor \"a\"", "a string"}},
      {"dimension is null", One("F32", "[null]", "[0,8]"), {"tensor \"a\"", "null"}},
      {"shape is a number", One("F32", "2", "[0,8]"), {"tensor \"a\"", "\"shape\""}},
      {"overflowing shape", One("F32", "[4294967296,4294967296]", "[0,8]"), {"overflows"}},
      {"overflow by the element size", One("F32", "[4611686018427387904]", "[0,8]"), {"overflows"}},
      {"dimension above int64", One("U8", "[18446744073709551615]", "[0,8]"), {"overflows"}},
      {"product that wraps to the right size",
       One("U8", "[4294967296,4294967296,8]", "[0,8]"),
       {"overflows"}},
      {"five dimensions", One("F32", "[1,1,1,1,2]", "[0,8]"), {"tensor \"a\"", "5 dimensions"}},
      {"a thousand dimensions",
       One("U8", "[" + ones + "1]", "[0,8]"),
       {"tensor \"a\"", "too long"}},
      {"shape smaller than the bytes", One("F32", "[1]", "[0,8]"), {"tensor \"a\"", "[1]"}},
      {"shape larger than the bytes", One("F32", "[3]", "[0,8]"), {"tensor \"a\"", "12 bytes"}},
      {"offsets backwards", One("F32", "[2]", "[8,0]"), {"tensor \"a\"", "data_offsets"}},
      {"one offset", One("F32", "[2]", "[8]"), {"tensor \"a\"", "data_offsets"}},
      {"three offsets", One("F32", "[2]", "[0,8,8]"), {"tensor \"a\"", "data_offsets"}},
      {"negative offset", One("F32", "[2]", "[-8,0]"), {"tensor \"a\"", "-8"}},
      {"offset past the file", One("F32", "[2]", "[0,8]", 7), {"tensor \"a\"", "truncated"}},
      {"offsets near the top",
       One("F32", "[2]", "[18446744073709551607,18446744073709551615]"),
       {"tensor \"a\""}},
      {"hole at the front", One("F32", "[2]", "[4,12]", 12), {"tensor \"a\"", "4 bytes before"}},
      {"hole between", Two("[0,8]", "[12,20]", 20), {"tensor \"b\"", "4 bytes before"}},
      {"overlap", Two("[0,8]", "[4,12]", 12), {"tensor \"b\"", "overlap"}},
      {"the same bytes twice", Two("[0,8]", "[0,8]", 8), {"tensor \"b\"", "overlap"}},
      {"second tensor cut", Two("[0,8]", "[8,16]", 12), {"tensor \"b\"", "truncated"}},
      {"trailing bytes", Two("[0,8]", "[8,16]", 17), {"1 bytes after", "tensor \"b\""}},
      {"data without tensors", File("{}", 3), {"3 bytes after"}},
      {"metadata is a list", File("{\"__metadata__\":[]}", 0), {"__metadata__"}},
      {"metadata holds a number", File("{\"__metadata__\":{\"a\":1}}", 0), {"__metadata__"}},
      {"metadata is nested", File("{\"__metadata__\":{\"a\":{}}}", 0), {"__metadata__"}},
      {"metadata twice", File("{\"__metadata__\":{},\"__metadata__\":{}}", 0), {"twice"}},
      {"escape sequences in a name", File("{\"\\u001b[31m\":null}", 0), {"tensor \"?[31m\""}},
      {"a name of a megabyte", File("{\"" + std::string(1 << 20, 'n') + "\":null}", 0), {"nnn..."}},
  };
}

TEST_F(SafetensorsTest, RefusesHostileFilesNamingFileAndTensor) {
  const auto files = HostileFiles();
  ASSERT_GE(files.size(), 40u);
  for (const Hostile& hostile : files) {
    const fs::path path = Write(hostile.content);
    const auto opened = SafetensorsFile::Open(path);
    ASSERT_FALSE(opened.ok()) << hostile.what;
    const std::string& message = opened.status().message();
    EXPECT_EQ(opened.status().code(), Code::kDataLoss) << hostile.what;
    EXPECT_NE(message.find(path.string()), std::string::npos) << hostile.what << ": " << message;
    EXPECT_LT(message.size(), 600u) << hostile.what;
    for (const std::string& part : hostile.named) {
      EXPECT_NE(message.find(part), std::string::npos) << hostile.what << ": " << message;
    }
  }
}

TEST_F(SafetensorsTest, RefusesEveryTruncationOfAGoodFile) {
  const std::string whole = Two("[0,8]", "[8,16]", 16);
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(SafetensorsFile::Open(Write(whole.substr(0, length))).ok()) << length;
  }
  EXPECT_TRUE(SafetensorsFile::Open(Write(whole)).ok());
}

TEST_F(SafetensorsTest, NamesAMissingFile) {
  const auto opened = SafetensorsFile::Open(folder_ / "absent.safetensors");
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), Code::kNotFound);
  EXPECT_NE(opened.status().message().find("absent.safetensors"), std::string::npos);
}

TEST_F(SafetensorsTest, ReadsUnusualButValidFiles) {
  // A header of odd length misaligns the data: allowed by the format.
  const auto odd = SafetensorsFile::Open(Write(One("F32", "[2]", "[0,8]")));
  ASSERT_TRUE(odd.ok()) << odd.status().message();
  EXPECT_EQ((*odd)->tensors().at("a").shape, (Shape{2}));
  const std::string others[] = {
      File("{}", 0),
      One("F32", "[]", "[0,4]", 4),     // a scalar
      One("F32", "[0,5]", "[0,0]", 0),  // no element
      File("{" + Entry("b", "U8", "[1]", "[1,2]") + "," + Entry("a", "U8", "[1]", "[0,1]") + "}  ",
           2),
      File("{\"__metadata__\":{\"format\":\"pt\"}}", 0),
  };
  for (const std::string& content : others) {
    const auto opened = SafetensorsFile::Open(Write(content));
    EXPECT_TRUE(opened.ok()) << content << opened.status().message();
  }
}

TEST_F(SafetensorsTest, WritesWhatItReads) {
  const Buffer buffer = Buffer::OnHost(24);
  for (int i = 0; i < 6; ++i) buffer.As<float>()[i] = static_cast<float>(i);
  const fs::path path = folder_ / "out.safetensors";
  ASSERT_TRUE(WriteSafetensors(path,
                               {{"second", buffer.View(DType::kF32, {2, 2}, 8)},
                                {"first", buffer.View(DType::kF32, {2})}},
                               {{"format", "pt"}})
                  .ok());
  const auto opened = SafetensorsFile::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  EXPECT_EQ((*opened)->metadata().at("format"), "pt");
  const Tensor& second = (*opened)->tensors().at("second");
  EXPECT_EQ(second.shape, (Shape{2, 2}));
  EXPECT_EQ(second.As<float>()[3], 5.0f);
  EXPECT_EQ((*opened)->tensors().size(), 2u);
}

// Names, types, shapes and bytes of the tensors, if none is found to be damaged.
std::optional<std::string> ContentsOf(const fs::path& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return std::nullopt;
  std::string contents;
  for (const auto& [name, tensor] : (*file)->tensors()) {
    if (!(*file)->Verify(name).ok()) return std::nullopt;
    contents += name + std::string(SafetensorsName(tensor.dtype)) + tensor.shape.ToString();
    contents.append(static_cast<const char*>(tensor.data), static_cast<size_t>(tensor.NumBytes()));
  }
  return contents;
}

TEST_F(SafetensorsTest, AnyBitOfAFileThatItWroteIsVerified) {
  const Buffer buffer = Buffer::OnHost(64);
  for (int i = 0; i < 16; ++i) buffer.As<float>()[i] = static_cast<float>(i);
  const fs::path path = folder_ / "x.safetensors";
  ASSERT_TRUE(WriteSafetensors(path,
                               {{"model.b", buffer.View(DType::kF32, {2, 4})},
                                {"model.a", buffer.View(DType::kBF16, {8}, 32)},
                                {"one", buffer.View(DType::kI8, {1})}},
                               {{"format", "pt"}})
                  .ok());
  const auto whole = ContentsOf(path);
  ASSERT_TRUE(whole);
  EXPECT_TRUE(SafetensorsFile::Open(path).value()->has_checksums());
  EXPECT_EQ(SafetensorsFile::Open(path).value()->metadata().size(), 1u);
  const std::string good = *ReadTextFile(path);
  int harmless = 0;
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    Write(bad);
    const auto contents = ContentsOf(path);
    if (contents) {
      EXPECT_EQ(*contents, *whole) << bit / 8 << good.substr(bit / 8, 20);
      ++harmless;
    }
  }
  EXPECT_LE(harmless, 8 * 8);  // in "format" and "pt"
}

TEST_F(SafetensorsTest, NamesTheTensorWhoseBytesDiffer) {
  const Buffer buffer = Buffer::OnHost(16);
  std::fill_n(buffer.As<float>(), 4, 1.0f);
  const fs::path path = folder_ / "x.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, {{"model.a", buffer.View(DType::kF32, {2})},
                                      {"model.b", buffer.View(DType::kF32, {2})}})
                  .ok());
  std::string bytes = *ReadTextFile(path);
  bytes.back() ^= 1;
  Write(bytes);
  const auto file = SafetensorsFile::Open(path).value();
  EXPECT_TRUE(file->Verify("model.a").ok());
  const Status damaged = file->Verify("model.b");
  EXPECT_EQ(damaged.code(), Code::kDataLoss);
  EXPECT_EQ(damaged.message(),
            path.string() + ": tensor \"model.b\" is damaged: its checksum differs");
}

TEST_F(SafetensorsTest, FilesOfOtherToolsHaveNoChecksums) {
  const auto file = SafetensorsFile::Open(Write(One("F32", "[2]", "[0,8]"))).value();
  EXPECT_FALSE(file->has_checksums());
  EXPECT_TRUE(file->Verify("a").ok());
}

// As where a program copied the metadata and added a tensor.
TEST_F(SafetensorsTest, SomeChecksumsAreRefused) {
  const std::string metadata =
      "\"__metadata__\":{\"xxh3_128:a\":\"" + std::string(32, '0') + "\"},";
  const std::string a = Entry("a", "U8", "[1]", "[0,1]"), b = Entry("b", "U8", "[1]", "[1,2]");
  const Status more =
      SafetensorsFile::Open(Write(File("{" + metadata + a + "," + b + "}", 2))).status();
  EXPECT_NE(more.message().find("tensor \"b\": it has no checksum"), std::string::npos);
  const Status fewer =
      SafetensorsFile::Open(Write(File("{" + metadata.substr(0, metadata.size() - 2) +
                                           ",\"xxh3_128:b\":\"\"}," + a + "}",
                                       1)))
          .status();
  EXPECT_NE(fewer.message().find("2 checksums for 1 tensors"), std::string::npos)
      << fewer.message();
}

TEST_F(SafetensorsTest, AnUnfinishedWriterLeavesNothing) {
  const fs::path path = folder_ / "half.safetensors";
  {
    auto writer = SafetensorsWriter::Create(path, {{"a", DType::kF32, {2}}});
    ASSERT_TRUE(writer.ok());
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsTest, RefusesToWriteANameTwice) {
  const auto writer = SafetensorsWriter::Create(folder_ / "x.safetensors",
                                                {{"a", DType::kF32, {2}}, {"a", DType::kF32, {2}}});
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find("tensor \"a\""), std::string::npos);
}

}  // namespace
}  // namespace tandem
