#include "model/arranged_source.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/dummy_weights.h"

namespace tandem {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.family = "llama";
  spec.dtype = DType::kF32;
  spec.vocab_size = 20;
  spec.hidden_size = 16;
  spec.max_positions = 32;
  LayerSpec layer;
  layer.attention.num_heads = 2;
  layer.attention.num_kv_heads = 1;
  layer.attention.head_dim = 8;
  layer.attention.rope = {.dim = 6, .interleaved = true};
  layer.mlp.intermediate_size = 24;
  spec.layers.assign(2, layer);
  spec.head_normed = true;
  return spec;
}

TEST(ArrangedSource, PairsThatAreNeighboursComeHalfByHalf) {
  const auto source = DummySource::FromSpec(Spec(), {.seed = 1}).value();
  ArrangedSource arranged(*source);
  const int64_t from[] = {0, 2, 4, 1, 3, 5, 6, 7};  // the last two do not turn
  for (const WeightRole role : {WeightRole::kQuery, WeightRole::kKey}) {
    const Tensor rows = arranged.Get({role, 1}).value();
    const Tensor stored = source->Get({role, 1}).value();
    ASSERT_EQ(rows.shape, stored.shape);
    for (int64_t row = 0; row < rows.dim(0); ++row) {
      const int64_t expected = row / 8 * 8 + from[row % 8];
      EXPECT_EQ(std::memcmp(rows.As<float>() + row * 16, stored.As<float>() + expected * 16,
                            16 * sizeof(float)),
                0)
          << row;
    }
  }
  const Tensor values = arranged.Get({WeightRole::kValue, 1}).value();
  const Tensor stored = source->Get({WeightRole::kValue, 1}).value();
  EXPECT_EQ(std::memcmp(values.data, stored.data, static_cast<size_t>(stored.NumBytes())), 0);
}

ModelSpec LatentSpecOf(int64_t key_dim, int64_t rank) {
  ModelSpec spec = Spec();
  for (LayerSpec& layer : spec.layers) {
    AttentionSpec& attention = layer.attention;
    attention.rope.dim = 4;
    attention.num_kv_heads = 1;
    attention.head_dim = rank + 4;
    attention.latent = {.rank = rank, .key_dim = key_dim, .value_dim = 6};
    attention.scale = 0.5;
  }
  return spec;
}

TEST(ArrangedSource, WhatTurnsBesideLatentsComesLastAndHalfByHalf) {
  const auto source = DummySource::FromSpec(LatentSpecOf(8, 20), {.seed = 1}).value();
  ArrangedSource arranged(*source);
  const int64_t turned[] = {0, 2, 1, 3};
  for (const auto& [role, head] : {std::pair(WeightRole::kQuery, 12), {WeightRole::kLatent, 24}}) {
    const Tensor rows = arranged.Get({role, 1}).value();
    const Tensor stored = source->Get({role, 1}).value();
    for (int64_t row = 0; row < rows.dim(0); ++row) {
      const int64_t index = row % head, first = head - 4;
      const int64_t expected = index < first ? row : row - index + first + turned[index - first];
      EXPECT_EQ(std::memcmp(rows.As<float>() + row * 16, stored.As<float>() + expected * 16,
                            16 * sizeof(float)),
                0)
          << row;
    }
  }
}

TEST(ArrangedSource, RowsThatStayInTheirBlockOfScalesAreArranged) {
  // As DeepSeek-V3: 64 of 192 rows of a head and of 576 turn, in blocks of 128.
  ModelSpec spec = LatentSpecOf(8, 20);
  const auto blocks_of = [&](int64_t rows) {
    spec.quantization = {
        .element = QuantScheme::Element::kFp8E4M3, .block_rows = rows, .block_columns = 8};
    return CheckArrangeable(spec);
  };
  EXPECT_TRUE(blocks_of(4).ok());
  EXPECT_TRUE(blocks_of(1).ok());
  EXPECT_EQ(blocks_of(5).code(), Code::kUnimplemented);
}

TEST(ArrangedSource, RowsOfANormedHeadHaveLengthOne) {
  const auto source = DummySource::FromSpec(Spec(), {.seed = 1}).value();
  ArrangedSource arranged(*source);
  const Tensor head = arranged.Get({WeightRole::kHead}).value();
  const Tensor stored = source->Get({WeightRole::kHead}).value();
  for (int64_t row = 0; row < head.dim(0); ++row) {
    double squares = 0.0;
    for (int64_t i = 0; i < 16; ++i) squares += std::pow(head.As<float>()[row * 16 + i], 2);
    EXPECT_NEAR(squares, 1.0, 1e-6);
    EXPECT_NEAR(head.As<float>()[row * 16] / stored.As<float>()[row * 16],
                head.As<float>()[row * 16 + 1] / stored.As<float>()[row * 16 + 1], 1e-6);
  }
}

TEST(ArrangedSource, ScalesOfBlocksOfRowsCannotBeArranged) {
  ModelSpec spec = Spec();
  EXPECT_TRUE(CheckArrangeable(spec).ok());
  spec.quantization = {
      .element = QuantScheme::Element::kFp8E4M3, .block_rows = 4, .block_columns = 8};
  EXPECT_EQ(CheckArrangeable(spec).code(), Code::kUnimplemented);
  EXPECT_NE(CheckArrangeable(spec).message().find("self_attn.q_proj"), std::string::npos);
}

}  // namespace
}  // namespace tandem
