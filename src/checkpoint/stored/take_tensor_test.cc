#include "checkpoint/stored/take_tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "checkpoint/stored/stored_tensor.h"
#include "tensor/convert.h"

namespace tandem {
namespace {

// A stored tensor whose elements count up from 0.
class TakeTensorTest : public ::testing::Test {
 protected:
  Tensor Counting(const Shape& shape) {
    memory_ = Buffer::OnHost(static_cast<size_t>(shape.NumElements()) * sizeof(float));
    std::iota(memory_.As<float>(), memory_.As<float>() + shape.NumElements(), 0.0f);
    return memory_.View(DType::kF32, shape);
  }
  std::vector<float> Take(const Tensor& stored, const TensorSource& source, const Shape& expected) {
    EXPECT_EQ(StoredShape(source, expected, stored.shape), stored.shape);
    const auto taken = TakeTensor(stored, source, expected, scratch_);
    EXPECT_TRUE(taken.ok()) << taken.status().message();
    EXPECT_EQ(taken->shape, expected);
    is_view_ =
        taken->data >= stored.data && taken->data < memory_.As<std::byte>() + memory_.bytes();
    return {taken->As<float>(), taken->As<float>() + taken->NumElements()};
  }

  Buffer memory_;
  ScratchBuffers scratch_;
  bool is_view_ = false;
};

TEST_F(TakeTensorTest, TheWholeTensorIsAView) {
  EXPECT_EQ(Take(Counting({2, 2}), {.name = "w"}, {2, 2}), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_TRUE(is_view_);
}

TEST_F(TakeTensorTest, AStackedPartIsAView) {
  // [q; k; v] of 2, 1 and 1 rows.
  const Tensor stored = Counting({4, 2});
  const RowMap key = {.first = 2, .block = 1, .stride = 0, .of = 4};
  EXPECT_EQ(Take(stored, {.name = "w", .rows = key}, {1, 2}), (std::vector<float>{4, 5}));
  EXPECT_TRUE(is_view_);
}

TEST_F(TakeTensorTest, GroupsOfHeadsAreGathered) {
  // Two groups of [q, q, k, v], one row each: the queries are rows 0, 1, 4, 5.
  const Tensor stored = Counting({8, 1});
  const RowMap query = {.first = 0, .block = 2, .stride = 4, .of = 8};
  const RowMap value = {.first = 3, .block = 1, .stride = 4, .of = 8};
  EXPECT_EQ(Take(stored, {.name = "w", .rows = query}, {4, 1}), (std::vector<float>{0, 1, 4, 5}));
  EXPECT_EQ(Take(stored, {.name = "w", .rows = value}, {2, 1}), (std::vector<float>{3, 7}));
  EXPECT_FALSE(is_view_);
}

TEST_F(TakeTensorTest, AFusedBiasFollowsTheSameMap) {
  const RowMap up = {.first = 1, .block = 1, .stride = 2, .of = 6};  // gate and up rows alternate
  EXPECT_EQ(Take(Counting({6}), {.name = "b", .rows = up, .transposed = true}, {3}),
            (std::vector<float>{1, 3, 5}));
}

TEST_F(TakeTensorTest, AMatrixStoredByColumnsIsTransposed) {
  EXPECT_EQ(Take(Counting({2, 3}), {.name = "w", .transposed = true}, {3, 2}),
            (std::vector<float>{0, 3, 1, 4, 2, 5}));
  const RowMap last = {.first = 2, .block = 1, .stride = 0, .of = 3};
  EXPECT_EQ(Take(Counting({2, 3}), {.name = "w", .rows = last, .transposed = true}, {1, 2}),
            (std::vector<float>{2, 5}));
}

TEST_F(TakeTensorTest, AnExpertIsOneOfAStack) {
  const RowMap second = {.first = 1, .block = 1, .stride = 0, .of = 2};
  EXPECT_EQ(Take(Counting({3, 2, 2}), {.name = "w", .rows = second, .expert = 2}, {1, 2}),
            (std::vector<float>{10, 11}));
  EXPECT_EQ(Take(Counting({3, 2}), {.name = "b", .expert = 1}, {2}), (std::vector<float>{2, 3}));
}

TEST_F(TakeTensorTest, KnowsTheShapeThatItNeeds) {
  const RowMap key = {.first = 2, .block = 1, .stride = 0, .of = 4};
  struct Case {
    Shape stored;
    TensorSource source;
    Shape needed;
  };
  const Case cases[] = {
      {{2, 1}, {.name = "w"}, {1, 2}},
      {{5, 2}, {.name = "w", .rows = key}, {4, 2}},  // wider heads than config.json says
      {{4, 2}, {.name = "w", .rows = key, .transposed = true}, {2, 4}},
      {{2, 1, 2}, {.name = "w", .expert = 2}, {3, 1, 2}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(StoredShape(c.source, {1, 2}, c.stored), c.needed);
  }
}

TEST(CheckStored, NamesTheShapeOrTypeThatAFileLacks) {
  const DType fp8 = DType::kF8E4M3;
  struct Case {
    DType stored_dtype;
    Shape stored;
    WeightPart part;
    Shape expected;
    DType dtype;
    const char* message;  // after the name
  };
  const Case cases[] = {
      {DType::kF32, {2, 3}, WeightPart::kWeight, {2, 3}, DType::kBF16, ""},
      {DType::kF32,
       {3, 2},
       WeightPart::kWeight,
       {2, 3},
       DType::kBF16,
       ": has shape [3, 2]; config.json requires [2, 3]"},
      {DType::kI8,
       {2},
       WeightPart::kBias,
       {2},
       DType::kBF16,
       ": is stored as I8; it must be F32, F16 or BF16"},
      {DType::kBF16,
       {2, 3},
       WeightPart::kWeight,
       {2, 3},
       fp8,
       ": is stored as BF16; by the quantization in config.json it must be F8_E4M3"},
      {fp8, {2, 3}, WeightPart::kWeight, {2, 3}, fp8, ""},
      {DType::kF32, {1}, WeightPart::kScale, {2}, DType::kF32, ""},
      {DType::kF32, {2, 1}, WeightPart::kScale, {2}, DType::kF32, ""},
      {DType::kF32,
       {3},
       WeightPart::kScale,
       {2},
       DType::kF32,
       ": has shape [3]; config.json requires [1] or [2]"},
      {DType::kF32,
       {2},
       WeightPart::kInputScale,
       {1},
       DType::kF32,
       ": has shape [2]; config.json requires [1]"},
      {DType::kF32,
       {1},
       WeightPart::kBias,
       {2},
       DType::kF32,
       ": has shape [1]; config.json requires [2]"},
  };
  for (const Case& c : cases) {
    const Status status =
        CheckStored({nullptr, c.stored_dtype, c.stored, {}}, c.part, c.expected, c.dtype, "w");
    EXPECT_EQ(status.message(), *c.message == '\0' ? "" : std::string("w") + c.message);
  }
}

TEST(BlockRows, AreTheWeightsRowsOrRefused) {
  // [q; k; v] of 256, 64 and 64 rows, with a scale for 64.
  const RowMap value = {.first = 320, .block = 64, .stride = 64, .of = 384};
  const auto scales = BlockRows(value, 64, "w");
  ASSERT_TRUE(scales.ok());
  EXPECT_EQ(scales->StoredRow(0), 5);
  EXPECT_EQ(scales->of, 6);
  EXPECT_EQ(BlockRows(value, 1, "w")->StoredRow(3), 323);
  EXPECT_TRUE(BlockRows({}, 128, "w")->is_identity());
  const Status cut = BlockRows(value, 128, "file: tensor \"w\"").status();
  EXPECT_EQ(cut.code(), Code::kUnimplemented);
  EXPECT_NE(cut.message().find("file: tensor \"w\""), std::string::npos);
  EXPECT_NE(cut.message().find("128 rows"), std::string::npos);
}

}  // namespace
}  // namespace tandem
