#include "tensor/torch_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "base/testing/source_dir.h"
#include "tensor/testing/torch_archive.h"
#include "tensor/torch_pickle.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using pickle::Archive;
using pickle::Dict;
using pickle::Global;
using pickle::Int;
using pickle::Ints;
using pickle::OrderedDict;
using pickle::PersistentId;
using pickle::Text;

// Written by torch itself: tests/golden/make_torch_files.py.
fs::path FromTorch(const std::string& name) { return SourceDir() / "tests/fuzz/torch_file" / name; }

class TorchFileTest : public ::testing::Test {
 protected:
  TorchFileTest()
      : folder_(fs::temp_directory_path() / ("torch_file_test." + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~TorchFileTest() override { fs::remove_all(folder_); }

  fs::path Write(const std::string& content) const {
    const fs::path path = folder_ / "x.bin";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  fs::path folder_;
};

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.NumElements()));
  EXPECT_EQ(sizeof(T), SizeOf(tensor.dtype));
  std::memcpy(values.data(), tensor.data, values.size() * sizeof(T));
  return values;
}

TEST_F(TorchFileTest, ReadsAStateDictOfTorch) {
  const auto file = OpenTorchFile(FromTorch("state_dict.bin"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto& tensors = (*file)->tensors();
  EXPECT_EQ(tensors.size(), 11u);
  std::vector<float> embedding;
  for (int i = 0; i < 12; ++i) embedding.push_back(static_cast<float>(i) / 8);
  EXPECT_EQ(Values<float>(tensors.at("embed.weight")), embedding);
  EXPECT_EQ(tensors.at("embed.weight").shape, (Shape{4, 3}));
  EXPECT_EQ(tensors.at("head.weight").data, tensors.at("embed.weight").data);  // tied
  EXPECT_EQ(tensors.at("norm.weight").dtype, DType::kBF16);
  EXPECT_EQ(Values<uint16_t>(tensors.at("norm.weight")), std::vector<uint16_t>(3, 0x3f80));
  EXPECT_EQ(Values<uint16_t>(tensors.at("norm.bias")), std::vector<uint16_t>(3, 0));
  EXPECT_EQ(tensors.at("scale").dtype, DType::kF16);
  EXPECT_EQ(Values<uint16_t>(tensors.at("scale")), (std::vector<uint16_t>{0x3800, 0x4000}));
  EXPECT_EQ(Values<uint8_t>(tensors.at("mask")), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(Values<uint8_t>(tensors.at("bytes")), (std::vector<uint8_t>{0, 1, 2, 3}));
  EXPECT_EQ(Values<int8_t>(tensors.at("zeros")), (std::vector<int8_t>{-2, -1, 0, 1}));
  EXPECT_EQ(Values<int32_t>(tensors.at("packed")), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(tensors.at("steps").shape, Shape{});
  EXPECT_EQ(Values<int64_t>(tensors.at("steps")), std::vector<int64_t>{7});
  EXPECT_EQ(tensors.at("none").shape, (Shape{0, 3}));
}

TEST_F(TorchFileTest, ReadsRowsOfAStorageParametersAndFp8OfTorch) {
  for (const char* name : {"rows.bin", "nocrc.bin"}) {
    const auto file = OpenTorchFile(FromTorch(name));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto& tensors = (*file)->tensors();
    EXPECT_EQ(tensors.at("middle").shape, (Shape{2, 3}));
    EXPECT_EQ(Values<float>(tensors.at("middle")), (std::vector<float>{3, 4, 5, 6, 7, 8}));
    EXPECT_EQ(tensors.at("middle").data, tensors.at("all").As<float>() + 3);
    EXPECT_EQ(Values<float>(tensors.at("parameter")), (std::vector<float>{9, 10, 11}));
  }
  const auto file = OpenTorchFile(FromTorch("fp8.bin"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Tensor& fp8 = (*file)->tensors().at("w");
  EXPECT_EQ(fp8.dtype, DType::kF8E4M3);
  EXPECT_EQ(ToFloat(Float8E4M3{fp8.As<uint8_t>()[7]}), 7.0f);
}

TEST_F(TorchFileTest, RefusesWhatElseTorchSavesNamingIt) {
  const std::vector<std::pair<const char*, std::vector<std::string>>> files = {
      {"module.bin", {"data.pkl", "opcode GLOBAL at byte 2", "__main__.Tied", "state_dict()"}},
      {"tensor.bin", {"data.pkl", "a tensor", "a dictionary of plain tensors"}},
      {"nested.bin", {"data.pkl", "tensor \"epoch\"", "an integer", "state_dict()"}},
      {"transposed.bin", {"tensor \"w\"", "transposed", ".contiguous()"}},
      {"expanded.bin", {"tensor \"w\"", "expanded", ".contiguous()"}},
      {"double.bin", {"opcode GLOBAL at byte 64", "torch.DoubleStorage"}},
      {"sparse.bin", {"opcode GLOBAL at byte 13", "torch._utils._rebuild_sparse_tensor"}},
      {"meta.bin", {"opcode GLOBAL at byte 13", "_rebuild_meta_tensor_no_storage"}},
      {"legacy.bin", {"before version 1.6", "safetensors"}},
      {"protocol4.bin", {"opcode PROTO at byte 0", "pickle protocol 4", "torch's default, 2"}},
  };
  for (const auto& [name, parts] : files) {
    const auto file = OpenTorchFile(FromTorch(name));
    ASSERT_FALSE(file.ok()) << name;
    EXPECT_EQ(file.status().code(), Code::kUnimplemented) << name;
    const std::string& message = file.status().message();
    EXPECT_TRUE(message.starts_with(FromTorch(name).string() + ": ")) << message;
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " not in: " << message;
    }
  }
}

const pickle::Storage kEight{.type = "FloatStorage", .name = "0", .count = 2};

// A file of one float tensor "w" [2] in 8 bytes, or of another pickle.
std::string File(const std::string& pickle) { return Archive(pickle, {{"0", "12345678"}}); }
std::string One(const std::string& value) { return File(Dict({{"w", value}})); }
std::string Shaped(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides,
                   int64_t offset = 0) {
  return One(pickle::Tensor(kEight, shape, strides, offset));
}

TEST_F(TorchFileTest, ReadsWhatTheTestsWrite) {
  const auto file = OpenTorchFile(Write(Shaped({2}, {1})));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(std::memcmp((*file)->tensors().at("w").data, "12345678", 8), 0);
  // A dimension of 1 has no meaningful stride, and an empty tensor none at all.
  EXPECT_TRUE(OpenTorchFile(Write(Shaped({1, 2}, {77, 1}))).ok());
  EXPECT_TRUE(OpenTorchFile(Write(Shaped({0, 2}, {5, 9}))).ok());
  EXPECT_TRUE(OpenTorchFile(Write(Shaped({1}, {1}, 1))).ok());
  EXPECT_TRUE(OpenTorchFile(Write(File(Dict({}))))->get()->tensors().empty());
}

struct Hostile {
  const char* what;
  std::string content;
  std::vector<std::string> named;  // parts of the message, in addition to the file
};

std::vector<Hostile> HostileFiles() {
  const std::string system = Global("posix", "system") + Text("touch hacked") + "\x85R";
  const std::string head = "\x80\x02";
  const std::string good = pickle::Tensor(kEight, {2}, {1});
  const std::string rebuild = Global("torch._utils", "_rebuild_tensor_v2");
  const int64_t huge = int64_t{1} << 62;
  std::string damaged = Shaped({2}, {1});
  damaged[damaged.find("torch._utils")] = 'T';
  std::string deep = head;
  for (int i = 0; i < 5'000'000; ++i) deep += '(';
  return {
      {"a call", One(system), {"data.pkl", "opcode GLOBAL at byte 10", "posix.system"}},
      {"eval", One(Global("__builtin__", "eval") + Text("1") + "\x85R"), {"__builtin__.eval"}},
      {"a class", One("\x81"), {"opcode NEWOBJ at byte 10"}},
      {"an instance", One("(i__main__\nA\n"), {"opcode INST at byte 11"}},
      {"an object", One("(" + Global("torch", "FloatStorage") + "o"), {"opcode OBJ"}},
      {"an extension", One("\x82\1"), {"opcode EXT1 at byte 10"}},
      {"a global by the stack",
       One(Text("posix") + Text("system") + "\x93"),
       {"opcode STACK_GLOBAL at byte 31"}},
      {"no opcode", One("\xff"), {"unknown opcode 0xff at byte 10"}},
      {"a storage called",
       One(Global("torch", "FloatStorage") + ")R"),
       {"opcode REDUCE at byte 31", "torch.FloatStorage"}},
      {"a called tensor", One(good + ")R"), {"opcode REDUCE", "not a tensor"}},
      {"an OrderedDict with items",
       One(Global("collections", "OrderedDict") + ")\x85R"),
       {"opcode REDUCE", "collections.OrderedDict"}},
      {"attributes", File("\x80\x02}}" + Text("x") + "Nsb."), {"opcode BUILD", "_metadata"}},
      {"a state that is no dictionary", File("\x80\x02}Nb."), {"opcode BUILD", "None"}},
      {"no dictionary", File("\x80\x02N."), {"None"}},
      {"a number as name", File("\x80\x02}" + Int(1) + good + "s."), {"an integer", "name"}},
      {"a name that is not UTF-8", File(Dict({{"\xff", good}})), {"UTF-8"}},
      {"a name twice", File(Dict({{"w", good}, {"w", good}})), {"tensor \"w\"", "twice"}},
      {"None as tensor", One("N"), {"tensor \"w\"", "None"}},
      {"a list as tensor", One("]"), {"tensor \"w\"", "a list"}},
      {"a dictionary as tensor", One("}"), {"tensor \"w\"", "a dictionary", "state_dict()"}},
      {"a dictionary inside itself",
       File("\x80\x02}q" + std::string("\0", 1) + Text("w") + "h" + std::string("\0", 1) + "s."),
       {"tensor \"w\"", "a dictionary"}},
      {"a bare storage", One(PersistentId(kEight)), {"tensor \"w\"", "a bare storage"}},
      {"another persistent id", One(Int(1) + "\x85Q"), {"opcode BINPERSID", "storage"}},
      {"a persistent id of None", One("NQ"), {"opcode BINPERSID", "None"}},
      {"a dictionary for a shape",
       One(rebuild + "(" + PersistentId(kEight) + Int(0) + "})\x89" + OrderedDict() + "tR"),
       {"opcode REDUCE", "_rebuild_tensor_v2"}},
      {"text in a shape",
       One(rebuild + "(" + PersistentId(kEight) + Int(0) + Text("2") + "\x85)\x89" + OrderedDict() +
           "tR"),
       {"opcode REDUCE", "_rebuild_tensor_v2"}},
      {"no arguments", One(rebuild + ")R"), {"opcode REDUCE", "_rebuild_tensor_v2"}},
      {"negative dimension", Shaped({-2}, {1}), {"tensor \"w\"", "negative"}},
      {"two negative dimensions", Shaped({-2, -1}, {1, 1}), {"tensor \"w\"", "negative"}},
      {"huge dimension", Shaped({huge}, {1}), {"tensor \"w\"", "overflows"}},
      {"overflow to zero", Shaped({huge, 4}, {4, 1}), {"tensor \"w\"", "overflows"}},
      {"five dimensions", Shaped({1, 1, 1, 1, 2}, {2, 2, 2, 2, 1}), {"5 dimensions"}},
      {"sixty-five dimensions",
       Shaped(std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)),
       {"opcode REDUCE", "_rebuild_tensor_v2"}},
      {"fewer strides than dimensions", Shaped({2}, {}), {"tensor \"w\"", "differ in length"}},
      {"past the storage", Shaped({3}, {1}), {"tensor \"w\"", "[3]", "storage of 2"}},
      {"offset past the storage", Shaped({2}, {1}, 1), {"tensor \"w\"", "from 1 on"}},
      {"negative offset", Shaped({2}, {1}, -1), {"tensor \"w\"", "from -1 on"}},
      {"huge offset", Shaped({2}, {1}, huge), {"tensor \"w\"", "storage of 2"}},
      {"offset that wraps", Shaped({2}, {1}, INT64_MAX), {"tensor \"w\"", "storage of 2"}},
      {"negative stride", Shaped({2}, {-1}), {"tensor \"w\"", ".contiguous()"}},
      {"stride of zero", Shaped({2}, {0}), {"tensor \"w\"", ".contiguous()"}},
      {"storage that says more than it has",
       One(pickle::Tensor({.type = "FloatStorage", .name = "0", .count = 3}, {2}, {1})),
       {"tensor \"w\"", "8 bytes", "says 12"}},
      {"storage of a negative size",
       One(pickle::Tensor({.type = "FloatStorage", .name = "0", .count = -2}, {2}, {1})),
       {"tensor \"w\"", "storage of -2"}},
      {"storage of a huge size",
       One(pickle::Tensor({.type = "FloatStorage", .name = "0", .count = huge}, {2}, {1})),
       {"tensor \"w\"", "storage of"}},
      {"storage that is missing",
       One(pickle::Tensor({.type = "FloatStorage", .name = "../1", .count = 2}, {2}, {1})),
       {"tensor \"w\"", "data/../1 is not in the archive"}},
      {"a type that is not read",
       One(pickle::Tensor({.type = "QInt8Storage", .name = "0", .count = 8}, {8}, {1})),
       {"opcode GLOBAL", "torch.QInt8Storage"}},
      {"an untyped storage without a type",
       One(rebuild + "((" + Text("storage") + Global("torch.storage", "UntypedStorage") +
           Text("0") + Text("cpu") + Int(8) + "tQ" + Int(0) + Ints({8}) + Ints({1}) + "\x89" +
           OrderedDict() + "tR"),
       {"opcode REDUCE", "_rebuild_tensor_v2"}},
      {"empty pickle", File(""), {"data.pkl", "truncated at byte 0"}},
      {"no protocol", File("}."), {"opcode EMPTY_DICT at byte 0", "PROTO"}},
      {"protocol 5", File("\x80\x05}."), {"protocol 5"}},
      {"protocol twice", File(head + head), {"opcode PROTO at byte 2"}},
      {"no stop", File(head + "}"), {"truncated at byte 3"}},
      {"bytes after the stop", File(Dict({}) + "."), {"opcode STOP", "bytes follow"}},
      {"two values at the stop", File(head + "NN."), {"opcode STOP"}},
      {"a mark at the stop", File(head + "}(."), {"opcode STOP"}},
      {"nothing at the stop", File(head + "."), {"opcode STOP"}},
      {"no mark", File(head + "t"), {"opcode TUPLE at byte 2", "mark"}},
      {"stack too small", File(head + "N\x86"), {"opcode TUPLE2 at byte 3", "too few"}},
      {"reaching below a mark", File(head + "N(\x85"), {"opcode TUPLE1 at byte 4", "too few"}},
      {"an item for no dictionary", File(head + "NNNs"), {"opcode SETITEM", "None"}},
      {"a key without a value", File(head + "}(Nu"), {"opcode SETITEMS", "no value"}},
      {"memo of nothing", File(head + std::string("q\0", 2)), {"opcode BINPUT at byte 2"}},
      {"memo out of order", File(head + "Nr\xff\xff\xff\xff"), {"opcode LONG_BINPUT at byte 3"}},
      {"memo never kept", File(head + "h\1"), {"opcode BINGET at byte 2"}},
      {"a long text", File(head + "X\xff\xff\xff\xff" + "w"), {"opcode BINUNICODE", "truncated"}},
      {"a name without its end", File(head + "ctorch"), {"opcode GLOBAL", "truncated"}},
      {"a long number",
       File(head + "\x8a\x09" + std::string(9, '\1')),
       {"opcode LONG1", "64 bits"}},
      {"too many marks", File(deep), {"opcode MARK", "4194304 values"}},
      {"a huge pickle", File(std::string((16u << 20) + 1, ' ')), {"data.pkl", "16777217 bytes"}},
      {"a damaged pickle", damaged, {"data.pkl", "checksum"}},
      {"big-endian",
       Archive(Dict({{"w", good}}), {{"0", "12345678"}}, "big"),
       {"byteorder", "big"}},
      {"no pickle", ZipArchive({{"m/version", "3"}}), {"no data.pkl"}},
      {"two pickles", ZipArchive({{"m/data.pkl", "}"}, {"n/data.pkl", "}"}}), {"more than one"}},
      {"no archive", "not an archive", {"not a ZIP archive"}},
      {"no bytes", "", {"not a ZIP archive"}},
  };
}

TEST_F(TorchFileTest, RefusesHostileFilesNamingFileAndFault) {
  for (const Hostile& hostile : HostileFiles()) {
    const fs::path path = Write(hostile.content);
    const auto file = OpenTorchFile(path);
    ASSERT_FALSE(file.ok()) << hostile.what;
    const std::string& message = file.status().message();
    EXPECT_TRUE(message.starts_with(path.string() + ": ")) << hostile.what << ": " << message;
    for (const std::string& part : hostile.named) {
      EXPECT_NE(message.find(part), std::string::npos)
          << hostile.what << ": " << part << " not in: " << message;
    }
  }
}

// Whatever changed: an error that names the file, or tensors that are all inside it.
TEST_F(TorchFileTest, SurvivesFlippedBytesAndTruncations) {
  std::mt19937 random(15);
  for (const char* name : {"state_dict.bin", "rows.bin", "fp8.bin"}) {
    const std::string good = *ReadTextFile(FromTorch(name));
    const auto expected = OpenTorchFile(FromTorch(name));
    for (int i = 0; i < 200; ++i) {
      std::string bytes = good;
      const size_t at = random() % bytes.size();
      if (i % 4 == 0) {
        bytes.resize(at);
      } else {
        bytes[at] = static_cast<char>(bytes[at] ^ (1u << random() % 8));
      }
      const fs::path path = Write(bytes);
      const auto file = OpenTorchFile(path);
      if (!file.ok()) {
        EXPECT_TRUE(file.status().message().starts_with(path.string())) << name << " " << at;
        continue;
      }
      const auto& tensors = (*file)->tensors();
      ASSERT_EQ(tensors.size(), (*expected)->tensors().size()) << name << " " << at;
      for (const auto& [key, tensor] : (*expected)->tensors()) {
        const Tensor& found = tensors.at(key);
        EXPECT_TRUE(found.shape == tensor.shape && found.dtype == tensor.dtype) << name << at;
      }
    }
  }
}

// Without the checksum in the way: a changed pickle gives an error or tensors inside their storage.
TEST_F(TorchFileTest, SurvivesFlippedBytesInThePickle) {
  std::mt19937 random(16);
  for (const char* name : {"state_dict.pkl", "rows.pkl", "fp8.pkl"}) {
    const std::string good = *ReadTextFile(FromTorch(name));
    ASSERT_TRUE(ReadTorchPickle(good).ok()) << name;
    for (int i = 0; i < 2000; ++i) {
      std::string bytes = good;
      for (int flips = 0; flips <= i % 3; ++flips) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      const auto tensors = ReadTorchPickle(bytes);
      if (!tensors.ok()) continue;
      for (const PickledTensor& tensor : *tensors) {
        const Tensor view{nullptr, tensor.dtype, tensor.shape, {}};
        EXPECT_LE(tensor.begin + static_cast<uint64_t>(view.NumBytes()), tensor.storage_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace tandem
