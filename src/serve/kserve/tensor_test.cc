#include "serve/kserve/tensor.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::serve::kserve {
namespace {

Tensor OfShape(DataType type, std::vector<int64_t> shape, std::string data) {
  return {"x", type, std::move(shape), std::move(data)};
}

TEST(TensorTest, TypesAndTheirNamesAgree) {
  for (int i = 0; i <= static_cast<int>(DataType::kBf16); ++i) {
    const auto type = static_cast<DataType>(i);
    EXPECT_EQ(DataTypeNamed(DataTypeName(type)), type);
  }
  EXPECT_EQ(DataTypeName(DataType::kBytes), "BYTES");
  EXPECT_EQ(ElementBytes(DataType::kInt64), 8u);
  EXPECT_EQ(ElementBytes(DataType::kBf16), 2u);
  EXPECT_FALSE(DataTypeNamed("STRING"));
}

TEST(TensorTest, ShapesHaveANumberOfElementsOrAnError) {
  EXPECT_EQ(*NumElements(std::vector<int64_t>{}), 1);
  EXPECT_EQ(*NumElements(std::vector<int64_t>{2, 3}), 6);
  EXPECT_EQ(*NumElements(std::vector<int64_t>{2, 0, 7}), 0);
  EXPECT_FALSE(NumElements(std::vector<int64_t>{2, 0, int64_t{1} << 62}).ok());
  EXPECT_FALSE(NumElements(std::vector<int64_t>{1, -1}).ok());
  EXPECT_FALSE(NumElements(std::vector<int64_t>{0, -1}).ok());
  EXPECT_FALSE(NumElements(std::vector<int64_t>{int64_t{1} << 31, int64_t{1} << 31}).ok());
  EXPECT_FALSE(NumElements(std::vector<int64_t>(8, INT64_MAX)).ok());
}

TEST(TensorTest, DataMustHoldExactlyTheElements) {
  EXPECT_TRUE(CheckData(OfShape(DataType::kInt32, {2}, std::string(8, '\0'))).ok());
  EXPECT_TRUE(CheckData(OfShape(DataType::kInt32, {1, 0}, "")).ok());
  for (const size_t bytes : {0, 7, 9, 12}) {
    EXPECT_FALSE(CheckData(OfShape(DataType::kInt32, {2}, std::string(bytes, '\0'))).ok());
  }
  const std::string word("\3\0\0\0abc", 7);
  EXPECT_TRUE(CheckData(OfShape(DataType::kBytes, {1}, word)).ok());
  EXPECT_TRUE(CheckData(OfShape(DataType::kBytes, {2}, word + word)).ok());
  EXPECT_FALSE(CheckData(OfShape(DataType::kBytes, {2}, word)).ok());
  EXPECT_FALSE(CheckData(OfShape(DataType::kBytes, {1}, word + "\1")).ok());
  EXPECT_FALSE(CheckData(OfShape(DataType::kBytes, {1}, word.substr(0, 6))).ok());
  const std::string endless("\377\377\377\377abc", 7);
  EXPECT_FALSE(CheckData(OfShape(DataType::kBytes, {1}, endless)).ok());
}

TEST(TensorTest, ElementsComeBack) {
  const std::vector<std::string> words = {"", "abc", std::string(300, 'x')};
  const Tensor strings = StringTensor("s", {3}, words);
  ASSERT_TRUE(CheckData(strings).ok());
  const std::vector<std::string_view> read = Strings(strings);
  EXPECT_EQ(std::vector<std::string>(read.begin(), read.end()), words);
  const std::vector<int32_t> ints = {-1, 0, INT32_MAX};
  EXPECT_EQ(Integers(Int32Tensor("i", {3}, ints)), (std::vector<int64_t>{-1, 0, INT32_MAX}));
  const std::vector<float> floats = {0.5f, -2.0f};
  EXPECT_EQ(Floats(FloatTensor("f", {2}, floats)), floats);
  EXPECT_EQ(Integers(OfShape(DataType::kUint8, {2}, "\xff\x01")), (std::vector<int64_t>{255, 1}));
  EXPECT_EQ(Bools(OfShape(DataType::kBool, {2}, std::string("\1\0", 2))),
            (std::vector<bool>{true, false}));
}

TEST(TensorTest, HalvesAreRead) {
  // 1, -2, the least positive value, infinity.
  const std::string halves("\x00\x3c\x00\xc0\x01\x00\x00\x7c", 8);
  const std::vector<float> read = Floats(OfShape(DataType::kFp16, {4}, halves));
  EXPECT_EQ(read[0], 1.0f);
  EXPECT_EQ(read[1], -2.0f);
  EXPECT_EQ(read[2], std::ldexp(1.0f, -24));
  EXPECT_TRUE(std::isinf(read[3]));
  const std::string brains("\x80\x3f\x00\xc0", 4);
  EXPECT_EQ(Floats(OfShape(DataType::kBf16, {2}, brains)), (std::vector<float>{1.0f, -2.0f}));
}

}  // namespace
}  // namespace tandem::serve::kserve
