// Engines built from folders that other tools quantized.
#include <gtest/gtest.h>

#include "checkpoint/hf_reader.h"
#include "checkpoint/testing/quantized_folder.h"
#include "engine_folder/build.h"
#include "engine_folder/engine_folder.h"

namespace tandem {
namespace {

class QuantizedBuildTest : public FolderTest,
                           public ::testing::WithParamInterface<quantized::Format> {};

TEST_P(QuantizedBuildTest, TheEngineHoldsTheWeightsOfTheFolder) {
  quantized::WriteBoth(folder_, GetParam());
  const auto built =
      Build({.checkpoint_dir = folder_ / "quantized", .output_dir = folder_ / "engine"});
  ASSERT_TRUE(built.ok()) << built.status().message();
  const auto engine = OpenEngine(folder_ / "engine");
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const auto hf = HfReader::Open(folder_ / "quantized");
  ASSERT_TRUE(hf.ok());
  EXPECT_EQ(engine->source->spec(), (*hf)->spec());
  for (const WeightId& id : StoredWeights((*hf)->spec())) {
    const auto a = (*hf)->Get(id);
    const auto b = engine->source->Get(id);
    ASSERT_TRUE(a.ok()) << a.status().message();
    ASSERT_TRUE(b.ok()) << b.status().message();
    ASSERT_EQ(a->shape, b->shape);
    if (id.part == WeightPart::kInputScale) continue;  // one for all of a product
    EXPECT_EQ(std::memcmp(a->data, b->data, static_cast<size_t>(a->NumBytes())), 0)
        << StandardSource((*hf)->spec(), id).name;
  }
}

INSTANTIATE_TEST_SUITE_P(Packings, QuantizedBuildTest, ::testing::ValuesIn(quantized::Packings()),
                         [](const auto& info) { return info.param.name; });

class MixedBuildTest : public FolderTest {};

TEST_F(MixedBuildTest, WeightsThatAreFusedAreQuantizedAlikeOrRefused) {
  std::vector<float> plain(64 * 32, 0.5f);
  quantized::WriteBoth(folder_, quantized::Packings().front(), [&](auto& tensors) {
    const std::string key = "model.layers.1.self_attn.k_proj.";
    std::erase_if(tensors, [&](const auto& tensor) { return tensor.first.starts_with(key); });
    tensors[key + "weight"] = {plain.data(), DType::kF32, {32, 64}, {}};
  });
  ASSERT_TRUE(HfReader::Open(folder_ / "quantized").ok());
  const auto built =
      Build({.checkpoint_dir = folder_ / "quantized", .output_dir = folder_ / "engine"});
  EXPECT_EQ(built.status().code(), Code::kUnimplemented);
  EXPECT_NE(built.status().message().find("transformer.layers.1.attention.qkv.weight"),
            std::string::npos)
      << built.status().message();
}

}  // namespace
}  // namespace tandem
